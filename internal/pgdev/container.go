package pgdev

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	engineTimeout = 3 * time.Second        // for a container engine to answer at all
	readyTimeout  = time.Minute            // for the server, once its container runs
	betweenTries  = 100 * time.Millisecond // to connect
)

// startContainer starts the image of POSTHASTE_PG_IMAGE, or else the official one, with the docker command. It needs an
// engine on this machine, since it connects to a local port.
func (o Options) startContainer(ctx context.Context) (*Server, error) {
	ask, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if _, err := docker(ask, "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, fmt.Errorf("no container engine answers: %w", err)
	}
	image := cmp.Or(os.Getenv("POSTHASTE_PG_IMAGE"), "postgres:"+cmp.Or(o.Major, majors[0])+"-alpine")
	name := "posthaste-" + strings.ToLower(rand.Text())
	args := []string{
		"--publish=127.0.0.1::5432", "--env=POSTGRES_USER=postgres", "--env=POSTGRES_PASSWORD=postgres",
		image, "postgres",
	}
	settings := o.settings()
	for _, setting := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", setting+"="+settings[setting])
	}
	fmt.Fprintf(o.Log, "starting a container of %s …\n", image)
	stop, err := runContainer(ctx, name, args)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", image, err)
	}
	s, err := awaitContainer(ctx, name, stop)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", image, err)
	}
	if got := number.FindString(s.version); !slices.Contains(majors, got) || o.Major != "" && got != o.Major {
		err := fmt.Errorf("%s has PostgreSQL %s, want %s", image, got, cmp.Or(o.Major, strings.Join(majors, ", ")))
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// runContainer returns when the container runs. A shell removes the container when the shell's standard input ends:
// when stop closes that, or when this process is killed. The shell has a process group of its own, so that Ctrl-C does
// not end it before us.
func runContainer(ctx context.Context, name string, args []string) (stop func(), err error) {
	const script = `docker run --detach --name "$0" "$@" >/dev/null && echo && read -r _; docker rm --force --volumes "$0" >/dev/null 2>&1`
	keeper := exec.Command("/bin/sh", append([]string{"-c", script, name}, args...)...)
	keeper.SysProcAttr = (*account)(nil).attributes()
	var complaints bytes.Buffer
	keeper.Stderr = &complaints
	input, err := keeper.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := keeper.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := keeper.Start(); err != nil {
		return nil, err
	}
	runs := make(chan bool, 1)
	go func() {
		_, err := bufio.NewReader(output).ReadString('\n')
		runs <- err == nil
	}()
	select {
	case <-ctx.Done(): // the shell removes the container once docker has made it
		return nil, errors.Join(ctx.Err(), input.Close())
	case up := <-runs:
		stop = func() { _ = errors.Join(input.Close(), keeper.Wait()) } // it fails if the container is gone already
		if !up {
			stop()
			return nil, fmt.Errorf("docker run%s", indent(complaints.Bytes()))
		}
		return stop, nil
	}
}

// awaitContainer returns the server of a container once it accepts connections from outside. (The official image first
// runs a server that listens on no port.) It returns an error at once if the container ends before that.
func awaitContainer(ctx context.Context, name string, stop func()) (_ *Server, err error) {
	defer func() {
		if err != nil {
			stop()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		url, version := "", ""
		address, err := docker(ctx, "port", name, "5432/tcp")
		if err == nil {
			url = "postgres://postgres:postgres@" + address + "/postgres?sslmode=disable"
			version, err = serverVersion(ctx, url)
		}
		if err == nil {
			return &Server{url: url, version: version, origin: "container", release: stop}, nil
		}
		if running, _ := docker(ctx, "inspect", "--format={{.State.Running}}", name); running == "false" {
			words, _ := docker(ctx, "logs", "--tail=20", name)
			return nil, fmt.Errorf("the server ended:%s", indent([]byte(words)))
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(betweenTries):
		}
	}
}

// docker returns the command's output, without surrounding white space.
func docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	out = bytes.TrimSpace(out)
	if err != nil {
		return "", fmt.Errorf("docker %s: %w%s", args[0], err, indent(out))
	}
	return string(out), nil
}
