package pgdocker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/testcontainers/testcontainers-go/modules/postgres"
)

const (
	readyTimeout   = time.Minute     // for the server, once its container runs
	answerTimeout  = 2 * time.Second // for one attempt at one address
	logLimit       = 2000            // bytes of a dead server's last words
	wordsTimeout   = 5 * time.Second // to get them
	betweenAnswers = 100 * time.Millisecond
)

// awaitReady returns the URL at which the server named name accepts connections from outside. (The official image first
// runs a server of its own that listens on no port.) It returns an error at once if the container ends before that.
func awaitReady(ctx context.Context, container *postgres.PostgresContainer, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	urls, err := addresses(ctx, container)
	if err != nil {
		return "", err
	}
	for {
		var errs []error
		for _, url := range urls {
			err := answers(ctx, url, name)
			if err == nil {
				return url, nil
			}
			errs = append(errs, err)
		}
		if state, err := container.State(ctx); err == nil && !state.Running {
			return "", fmt.Errorf("the server ended: %s", lastWords(ctx, container))
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(errs...)
		case <-time.After(betweenAnswers):
		}
	}
}

// addresses returns the addresses at which the server may be reached: that which testcontainers reports, and the same
// port of this machine. In a container, testcontainers assumes that the engine runs on the host, and returns the
// gateway's address; but the engine may run in this container.
func addresses(ctx context.Context, container *postgres.PostgresContainer) ([]string, error) {
	said, err := container.ConnectionString(ctx, "sslmode=disable")
	if err != nil {
		return nil, err
	}
	local, err := url.Parse(said)
	if err != nil {
		return nil, err
	}
	local.Host = net.JoinHostPort("127.0.0.1", local.Port())
	return []string{said, local.String()}, nil
}

// answers returns nil if the server at url is the one named name: another server may have that port of that machine.
func answers(ctx context.Context, url, name string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var got string
	if err := conn.QueryRow(ctx, "SHOW cluster_name").Scan(&got); err != nil {
		return err
	}
	if got != name {
		return fmt.Errorf("at %s answers another server", conn.Config().Host)
	}
	return nil
}

// lastWords returns the end of the server's output.
func lastWords(ctx context.Context, container *postgres.PostgresContainer) string {
	ctx, cancel := context.WithTimeout(ctx, wordsTimeout)
	defer cancel()
	out, err := container.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer out.Close()
	words, err := io.ReadAll(out)
	if err != nil {
		return err.Error()
	}
	return string(words[max(0, len(words)-logLimit):])
}
