package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestDemoProvesThatEachEffectHappenedOnce(t *testing.T) {
	t.Parallel()
	s := startShow(t)
	if code := s.end(t); code != 0 {
		t.Errorf("exit status = %d, want 0", code)
	}
	for _, want := range []string{
		"kill -9 of worker",
		"✔ every order has exactly one receipt",
		"✔ every order has exactly one reservation",
		"✔ stock adds up",
		"✔ no job is open, none is dead",
		"✔ every job closed exactly once, succeeded",
		"✔ the dead worker's jobs ran again",
	} {
		if !strings.Contains(s.output.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if strings.Contains(s.output.String(), "✘") {
		t.Error("a check failed, and yet the demonstration goes on to say that all is well")
	}
	s.wantGone(t)
}

func TestDemoFindsADuplicate(t *testing.T) {
	t.Parallel()
	s := startShow(t)
	s.await(t, "placed")
	shop := connect(t, s.url(t))
	for {
		tag, err := shop.Exec(t.Context(), `INSERT INTO receipts (order_id, sent_by) SELECT order_id, 'nobody' FROM receipts LIMIT 1`)
		if err != nil {
			t.Fatal(err)
		}
		if tag.RowsAffected() == 1 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	shop.Close(t.Context()) // or it could not be dropped
	if code := s.end(t); code != 1 {
		t.Errorf("exit status = %d, want 1", code)
	}
	for _, want := range []string{
		"✘ every order has exactly one receipt",
		"200 orders, 201 receipts, 1 wrong",
		"✔ every order has exactly one reservation",
		"not everything holds",
	} {
		if !strings.Contains(s.output.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	s.wantGone(t)
}

func TestDemoStopsAndClearsAwayWhenInterrupted(t *testing.T) {
	t.Parallel()
	s := startShow(t)
	s.await(t, "kill -9 of worker")
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.end(t); code != 130 {
		t.Errorf("exit status = %d, want 130", code)
	}
	s.wantGone(t)
}

func TestDemoStaysUntilInterrupted(t *testing.T) {
	t.Parallel()
	s := startShow(t, "--stay")
	s.await(t, "The shop stays open")
	s.await(t, "placed 201") // an order of the time after
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := s.end(t); code != 0 {
		t.Errorf("exit status = %d, want 0", code)
	}
	s.wantGone(t)
}

func TestDemoFailsWhenAWorkerDiesByItself(t *testing.T) {
	t.Parallel()
	s := startShow(t, "--stay")
	line := s.await(t, "worker c works: process ")
	_, after, _ := strings.Cut(line, "process ")
	pid, err := strconv.Atoi(strings.TrimSuffix(strings.Fields(after)[0], ","))
	if err != nil {
		t.Fatal(err)
	}
	s.await(t, "The shop stays open")
	worker, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Kill(); err != nil {
		t.Fatal(err)
	}
	if code := s.end(t); code != 1 {
		t.Errorf("exit status = %d, want 1", code)
	}
	if want := "worker c ended by itself"; !strings.Contains(s.output.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
	s.wantGone(t)
}

func TestWorkersDieWithTheDemo(t *testing.T) {
	t.Parallel()
	s := startShow(t)
	s.await(t, "placed")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	conn := connect(t, s.server)
	// What nobody is left to clear away: fails while a worker is connected, for
	// whose end Postgres waits five seconds.
	if _, err := conn.Exec(context.Background(), "DROP DATABASE "+s.database); err != nil {
		t.Errorf("a worker outlived the demonstration: %v", err)
	}
}
