package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/child"
)

// patroniTTL is how long a silent leader keeps the leadership: the shortest time that Patroni's manual allows.
const patroniTTL = 20 * time.Second

// patroniPatience is how long any step of Patroni may take on a busy machine.
const patroniPatience = 2 * time.Minute

// patroniSettings are the settings of docs/operate/ha.md, for the cluster and for a member.
const patroniSettings = `
scope: verify
name: %[1]s
restapi: {listen: "127.0.0.1:%[3]s", connect_address: "127.0.0.1:%[3]s"}
etcd3: {hosts: "127.0.0.1:%[4]s"}
bootstrap:
  dcs:
    ttl: %[5]d
    loop_wait: 1
    retry_timeout: 9
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {max_connections: 200, wal_log_hints: "on"}
  initdb: [{encoding: UTF8}, {locale: C}, {auth: trust}, no-sync]
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: 127.0.0.1:%[2]s
  connect_address: 127.0.0.1:%[2]s
  data_dir: %[6]s/%[1]s
  bin_dir: %[7]s
  pgpass: %[6]s/pgpass-%[1]s
  basebackup: [{checkpoint: fast}]
  authentication:
    superuser: {username: postgres, password: x}
    replication: {username: postgres, password: x}
    rewind: {username: postgres, password: x}
  parameters: {unix_socket_directories: %[6]s}
watchdog: {mode: "off"}
`

// proxySettings are also from docs/operate/ha.md.
const proxySettings = `
global
  maxconn 500
defaults
  mode tcp
  timeout connect 2s
  timeout check 2s
  timeout client 1h
  timeout server 1h
listen leader
  bind 127.0.0.1:%s
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
`

// patroni is a cluster of two servers. Patroni makes one of them the leader, with an etcd of the cluster's own.
type patroni struct {
	run     *Run
	dir     string
	as      []string // command that runs another as an account that may run Postgres
	members []*patroniMember
}

type patroniMember struct {
	name, port, api string
	process         *child.Process
}

// startPatroni starts a cluster, and returns when the leader's commits wait for the standby.
func (r *Run) startPatroni(ctx context.Context) (p *patroni, err error) {
	for _, program := range []string{"patroni", "etcd", "haproxy"} {
		if programAt(program) == "" {
			return nil, notPossible(program + " is not installed (apt-get install patroni etcd-server haproxy)")
		}
	}
	if !strings.HasPrefix(r.Server.Version(), "15.") {
		return nil, notPossible("Debian's Patroni 3.0 is older than this PostgreSQL, and was not tested with it")
	}
	p = &patroni{run: r}
	if err := p.settle(); err != nil {
		return nil, err
	}
	var ports [6]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return p, err
		}
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	if _, err := p.start("etcd", programAt("etcd"), "--data-dir", filepath.Join(p.dir, "etcd"), "--listen-client-urls",
		client,
		"--advertise-client-urls", client, "--listen-peer-urls", peer, "--unsafe-no-fsync"); err != nil {
		return p, err
	}
	for i, name := range []string{"a", "b"} {
		m := &patroniMember{name: name, port: ports[2+2*i], api: ports[3+2*i]}
		settings := fmt.Sprintf(patroniSettings, m.name, m.port, m.api, ports[0], int(patroniTTL.Seconds()), p.dir,
			r.Server.Programs())
		if err := os.WriteFile(filepath.Join(p.dir, name+".yml"), []byte(settings), 0o644); err != nil {
			return p, err
		}
		p.members = append(p.members, m)
		if err := p.join(m); err != nil {
			return p, err
		}
	}
	return p, p.awaitStandby(ctx)
}

func programAt(name string) string {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if at, err := exec.LookPath(path); err == nil {
			return at
		}
	}
	return ""
}

// settle makes the folder of the cluster, which the account of its servers can reach.
func (p *patroni) settle() error {
	var err error
	if p.dir, err = os.MkdirTemp("", "posthaste-ha-"); err != nil || os.Geteuid() != 0 {
		return err
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		p.as = []string{
			"setpriv", "--reuid=" + account.Uid, "--regid=" + account.Gid, "--clear-groups",
			"--pdeathsig=keep",
		}
		return os.Chown(p.dir, uid, gid)
	}
	return notPossible("Postgres does not run as root, and there is no user postgres or nobody to run it")
}

// start starts a program of the cluster, in the cluster's folder: the account of the servers may not be allowed to
// enter ours, and Patroni does not come up where it cannot.
func (p *patroni) start(name string, args ...string) (*child.Process, error) {
	r := p.run
	r.mu.Lock()
	defer r.mu.Unlock()
	log := filepath.Join(r.Dir, fmt.Sprintf("%03d-%s.log", len(r.processes), name))
	args = slices.Concat([]string{"env", "--chdir=" + p.dir}, p.as, args)
	process, err := child.Start(name, log, args[0], []string{"HOME=" + p.dir}, nil, args[1:]...)
	if err == nil {
		r.processes = append(r.processes, process)
	}
	return process, err
}

// join starts the Patroni of a member, as systemd would.
func (p *patroni) join(m *patroniMember) (err error) {
	m.process, err = p.start("patroni-"+m.name, programAt("patroni"), filepath.Join(p.dir, m.name+".yml"))
	return err
}

// state returns each member's role as Patroni reports it: leader, sync_standby or replica. It leaves out members that
// are not running.
func (p *patroni) state(ctx context.Context) (roles map[string]string, err error) {
	for _, m := range p.members {
		var answer struct {
			Members []struct{ Name, Role, State string }
		}
		if err = m.ask(ctx, http.MethodGet, "/cluster", nil, &answer); err != nil {
			continue
		}
		roles = map[string]string{}
		for _, member := range answer.Members {
			if member.State == "running" || member.State == "streaming" {
				roles[member.Name] = member.Role
			}
		}
		return roles, nil
	}
	return nil, err
}

// ask sends a request to the REST API of a member's Patroni.
func (m *patroniMember) ask(ctx context.Context, method, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:"+m.api+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("patroni %s: %s %s: %s", m.name, method, path, response.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// awaitStandby waits until there is a leader whose commits wait for the other member.
func (p *patroni) awaitStandby(ctx context.Context) error {
	return p.run.Await(ctx, patroniPatience, "the cluster to have a leader and a synchronous standby",
		func(ctx context.Context) (bool, error) {
			_ = backoff.Sleep(ctx, 250*time.Millisecond) // a request costs Patroni milliseconds of a core
			roles, err := p.state(ctx)
			roleOf := map[string]bool{}
			for _, role := range roles {
				roleOf[role] = true
			}
			return roleOf["leader"] && roleOf["sync_standby"], err
		})
}

// leader waits for a member that takes writes, and returns it and the other one. It may have to wait: on a busy machine
// Patroni takes the leadership from a member that is late, and gives it back.
func (p *patroni) leader(ctx context.Context) (leader, other *patroniMember, err error) {
	err = p.run.Await(ctx, patroniPatience, "a member to say that it is the leader",
		func(ctx context.Context) (bool, error) {
			for i, m := range p.members {
				if m.ask(ctx, http.MethodGet, "/primary", nil, nil) == nil {
					leader, other = m, p.members[1-i]
					return true, nil
				}
			}
			return false, backoff.Sleep(ctx, 100*time.Millisecond)
		})
	return leader, other, err
}

const (
	switchedOver = "planned switchover"
	leaderKilled = "kill -9 of the leader"
)

// switchOver makes the standby the leader, as an administrator does before maintenance, and retries if Patroni refuses
// or fails. It returns, when the standby takes writes, an upper bound of the time in which no member took any.
func (p *patroni) switchOver(ctx context.Context) (took time.Duration, err error) {
	leader, other, err := p.leader(ctx)
	if err != nil {
		return 0, err
	}
	defer p.run.Faults.Begin(switchedOver, leader.name)()
	began := time.Now()
	err = p.run.Await(ctx, patroniPatience, "member "+other.name+" to take writes",
		func(ctx context.Context) (bool, error) {
			if other.ask(ctx, http.MethodGet, "/primary", nil, nil) == nil {
				return true, nil
			}
			return false, leader.ask(ctx, http.MethodPost, "/switchover",
				map[string]string{"leader": leader.name, "candidate": other.name}, nil)
		})
	p.run.DB.Reset() // our own connections are gone, too
	return time.Since(began), err
}

// kill kills the leader's Patroni and its server, waits until the standby leads, and starts the killed member again.
func (p *patroni) kill(ctx context.Context) (took time.Duration, err error) {
	leader, other, err := p.leader(ctx)
	if err != nil {
		return 0, err
	}
	healed := p.run.Faults.Begin(leaderKilled, leader.name)
	began := time.Now()
	if err := errors.Join(leader.process.Kill9(), p.signal(leader, syscall.SIGKILL)); err != nil {
		return 0, err
	}
	if took, err = p.awaitLeader(ctx, other, began); err != nil {
		return 0, err
	}
	healed()
	return took, p.join(leader)
}

func (p *patroni) awaitLeader(ctx context.Context, m *patroniMember, began time.Time) (took time.Duration, err error) {
	err = p.run.Await(ctx, patroniPatience, "member "+m.name+" to take writes",
		func(ctx context.Context) (bool, error) {
			_ = backoff.Sleep(ctx, 100*time.Millisecond)
			err := m.ask(ctx, http.MethodGet, "/primary", nil, nil)
			return err == nil, err
		})
	p.run.DB.Reset() // our own connections are gone, too
	return time.Since(began), err
}

// signal sends a signal to the server of a member, which is not our child process. A killed server leaves its
// postmaster.pid behind, and another process may have its number by now, so signal checks the command line first.
func (p *patroni) signal(m *patroniMember, sig syscall.Signal) error {
	content, err := os.ReadFile(filepath.Join(p.dir, m.name, "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return fmt.Errorf("postmaster.pid of member %s: %w", m.name, err)
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(command, []byte(p.dir)) {
		return fmt.Errorf("the server of member %s is gone: %w", m.name, errors.Join(os.ErrProcessDone, err))
	}
	return syscall.Kill(pid, sig)
}

// stop kills Patroni first, which would restart the servers, and then the servers.
func (p *patroni) stop() error {
	if p == nil {
		return nil
	}
	for _, m := range p.members {
		if m.process == nil {
			continue
		}
		_ = m.process.Kill9()
		_ = p.signal(m, syscall.SIGQUIT) // it may be gone
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && p.serves(); {
		time.Sleep(20 * time.Millisecond)
	}
	return os.RemoveAll(p.dir)
}

// serves reports whether a server is still running. A server removes its postmaster.pid when it stops in good order.
func (p *patroni) serves() bool {
	for _, m := range p.members {
		if p.signal(m, 0) == nil {
			return true
		}
	}
	return false
}

// urls returns two ways in which clients find the leader: trying both members, and HAProxy, which it starts.
func (p *patroni) urls() (direct, proxied string, err error) {
	var hosts, servers []string
	for _, m := range p.members {
		hosts = append(hosts, "127.0.0.1:"+m.port)
		servers = append(servers, fmt.Sprintf("  server %s 127.0.0.1:%s check port %s\n", m.name, m.port, m.api))
	}
	at, err := freePort()
	if err != nil {
		return "", "", err
	}
	file := filepath.Join(p.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(proxySettings, at)+strings.Join(servers, "")), 0o644); err != nil {
		return "", "", err
	}
	if _, err := p.start("haproxy", programAt("haproxy"), "-f", file, "-db"); err != nil {
		return "", "", err
	}
	return "postgres://postgres@" + strings.Join(hosts, ",") +
			"/verify?sslmode=disable&target_session_attrs=read-write",
		"postgres://postgres@127.0.0.1:" + at + "/verify?sslmode=disable", nil
}
