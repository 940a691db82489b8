package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/source"
)

// stream and consumer are named as by the program in examples/points, which makes the consumer.
const (
	stream   = "SHOP"
	consumer = "points"
)

// broker is a NATS server of this demonstration's own, in a process that it kills.
type broker struct {
	url, program, config string
	process              *exec.Cmd
}

// startBroker builds internal/natsdev, which is nats-server and a module of its own, and starts it.
func startBroker(ctx context.Context, dir string) (*broker, error) {
	b := &broker{program: filepath.Join(dir, "natsdev"), config: filepath.Join(dir, "nats.conf")}
	if err := source.Build(ctx, "internal/natsdev", b.program); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close() // the server takes it
	b.url = fmt.Sprintf("nats://127.0.0.1:%d", port)
	settings := fmt.Sprintf("host: 127.0.0.1\nport: %d\njetstream { store_dir: %q, sync_interval: always }\n", port,
		filepath.Join(dir, "store"))
	if err := os.WriteFile(b.config, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	return b, b.start(ctx)
}

// start starts the server, on the files that it had before, and waits until JetStream answers.
func (b *broker) start(ctx context.Context) error {
	b.process = exec.Command(b.program, b.config)
	if err := b.process.Start(); err != nil {
		return err
	}
	var err error
	for range 200 {
		if err = b.use(ctx, func(js jetstream.JetStream) error {
			_, err := js.AccountInfo(ctx)
			return err
		}); err == nil {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("the NATS server does not answer: %w", err)
}

// kill ends the server by SIGKILL.
func (b *broker) kill() error {
	err := b.process.Process.Kill()
	_ = b.process.Wait() // it says that it was killed
	return err
}

// use connects for a moment.
func (b *broker) use(ctx context.Context, do func(jetstream.JetStream) error) error {
	nc, err := nats.Connect(b.url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return do(js)
}

// makeStream makes the stream.
func (b *broker) makeStream(ctx context.Context) error {
	return b.use(ctx, func(js jetstream.JetStream) error {
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"shop.>"}})
		return err
	})
}

// publishAgain publishes every message of the stream once more, after the broker has forgotten its ID: as a producer
// does that tries again late.
func (b *broker) publishAgain(ctx context.Context) (n int, err error) {
	err = b.use(ctx, func(js jetstream.JetStream) error {
		s, err := js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		if _, err := js.UpdateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{"shop.>"},
			Duplicates: 100 * time.Millisecond,
		}); err != nil {
			return err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		last := s.CachedInfo().State.LastSeq
		for seq := uint64(1); seq <= last; seq++ {
			m, err := s.GetMsg(ctx, seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if _, err := js.PublishMsg(
				ctx, &nats.Msg{
					Subject: m.Subject, Header: nats.Header{"Nats-Msg-Id": m.Header["Nats-Msg-Id"]},
					Data: m.Data,
				}); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
