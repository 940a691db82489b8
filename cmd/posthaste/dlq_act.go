package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func actOnLettersFlags() []cli.Flag {
	return append(letterFlags(),
		&cli.BoolFlag{Name: "all", Usage: "all dead letters"},
		reasonFlag(),
		dryRunFlag("list the dead letters it would act on, or count them by filter, as they are now"),
		&cli.BoolFlag{
			Name:  "detach",
			Usage: "by filter, or --all: let the processes that serve the API do it, and print the operation's id (see posthaste operations)",
		},
		yesFlag(),
	)
}

// letters are the dead letters for a command to act on.
type letters struct {
	ids    []outbox.ID // empty for those of the filter
	filter operator.DeadLetterFilter
}

func whichLetters(c *cli.Command) (which letters, err error) {
	if which.filter, err = letterFilter(c); err != nil {
		return which, &usageError{err}
	}
	filtered := which.filter != operator.DeadLetterFilter{}
	switch {
	case c.NArg() > 0 && (filtered || c.Bool("all")):
		return which, usagef("want IDs, or filters, or --all: not two of them")
	case c.NArg() > 0 && (c.IsSet("rate") || c.Bool("detach")): // each is acted on at once, and by this command
		return which, usagef("--rate and --detach are for filters and --all, not for IDs")
	case c.NArg() > 0:
		which.ids, err = jobIDs(c)
		return which, err
	case filtered == c.Bool("all"):
		return which, usagef("no jobs selected: want IDs, or filters, or --all (see %s --help)", c.FullName())
	}
	return which, nil
}

func (p *program) replayLetters(ctx context.Context, c *cli.Command) error {
	which, err := whichLetters(c)
	if err != nil {
		return err
	}
	var rate float64
	if err := readRate(c, "jobs", &rate); err != nil {
		return &usageError{err}
	}
	if c.IsSet("payload") {
		return p.replayEdited(ctx, c, which)
	}
	if c.String("api-schemas") != "" {
		return usagef("--api-schemas is for --payload: nothing else is checked")
	}
	if c.Bool("forget") {
		return usagef("--forget is for --payload: without one, a job goes on with what it remembers")
	}
	return p.actOnLetters(ctx, c, "replay", which,
		func(ctx context.Context, o letterActs, f operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error] {
			return o.ReplayDeadLetters(ctx, f, rate)
		}, retryAct)
}

func (p *program) dismissLetters(ctx context.Context, c *cli.Command) error {
	which, err := whichLetters(c)
	if err != nil {
		return err
	}
	return p.actOnLetters(ctx, c, "dismiss", which,
		func(ctx context.Context, o letterActs, f operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error] {
			return o.DismissDeadLetters(ctx, f)
		}, dismissAct)
}

func (p *program) replayEdited(ctx context.Context, c *cli.Command, which letters) error {
	if len(which.ids) != 1 {
		return usagef("--payload is for one job: want its ID")
	}
	payload, err := p.payload(c.String("payload")) // which is not empty: see refuseEmpty
	if err != nil {
		return err
	}
	s, err := p.load(c, "api-schemas")
	if err != nil {
		return err
	}
	return operate(ctx, p, c, func(ctx context.Context, o letterEditor) error {
		switch by := o.(type) {
		case *operator.Operator:
			by = by.CheckedBy(s.server.API.Kinds)
			if c.Bool("forget") {
				by = by.Forgetting()
			}
			o = by
		case *remote:
			by.forget = c.Bool("forget")
			if c.String("api-schemas") != "" {
				return usagef("--api-schemas: the API checks payloads by its own schemas")
			}
		}
		replay, word := o.ReplayEdited, ""
		if c.Bool("dry-run") {
			replay, word = o.WouldReplayEdited, "would replay "
		}
		return p.onEach(which.ids, word, func(id outbox.ID) error {
			return inFlagWords(replay(ctx, id, payload))
		})
	})
}

type (
	actOnAll func(context.Context, letterActs, operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error]

	letterActs interface {
		jobActs
		MatchDeadLetters(context.Context, operator.DeadLetterFilter) (operator.BulkProgress, error)
		ReplayDeadLetters(ctx context.Context, f operator.DeadLetterFilter,
			rate float64) iter.Seq2[operator.BulkProgress, error]
		DismissDeadLetters(context.Context, operator.DeadLetterFilter) iter.Seq2[operator.BulkProgress, error]
	}
	letterEditor interface {
		ReplayEdited(ctx context.Context, id outbox.ID, payload []byte) error
		WouldReplayEdited(ctx context.Context, id outbox.ID, payload []byte) error
	}
)

var (
	_ letterActs   = (*operator.Operator)(nil)
	_ letterEditor = (*operator.Operator)(nil)
)

// actOnLetters acts on the dead letters that were named or filtered. With a filter, these are the ones that exist when
// they are counted, so that nobody confirms less than what happens.
func (p *program) actOnLetters(ctx context.Context, c *cli.Command, verb string, which letters, all actOnAll,
	one jobAct,
) error {
	return operate(ctx, p, c, func(ctx context.Context, o letterActs) error {
		if len(which.ids) > 0 {
			return p.actOnEach(ctx, c, o, verb, which.ids, one)
		}
		matched, err := o.MatchDeadLetters(ctx, which.filter)
		if err != nil {
			return err
		}
		if c.Bool("dry-run") {
			return p.dryRun(verb, matched.Matched)
		}
		if err := p.sure(ctx, c, verb, int(matched.Matched), "dead letters"); err != nil {
			return err
		}
		which.filter.FailedUntil = matched.FailedUntil
		if c.Bool("detach") {
			return p.detach(ctx, c, o, operator.OperationAct(verb), which.filter)
		}
		return p.follow(verb, all(ctx, o, which.filter))
	})
}

// detach leaves the act to the processes that serve the API.
func (p *program) detach(ctx context.Context, c *cli.Command, o letterActs, act operator.OperationAct,
	f operator.DeadLetterFilter,
) (err error) {
	n := operator.OperationSpec{Act: act, Filter: f}
	if err := readRate(c, "jobs", &n.PerSecond); err != nil {
		return err // replayLetters has checked it
	}
	started, err := o.(operationActs).StartOperation(ctx, n) // both letterActs are operationActs
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s\n", started.ID)
	return err
}

func (p *program) dryRun(verb string, n int64) error {
	_, err := fmt.Fprintf(p.stdout, "would %s %d\n", verb, n)
	return err
}

// actOnEach acts on the jobs that were named. A failure does not keep it from the other jobs.
func (p *program) actOnEach(ctx context.Context, c *cli.Command, o letterActs, verb string, ids []outbox.ID,
	a jobAct,
) error {
	if c.Bool("dry-run") {
		return p.onEach(ids, "would "+verb+" ", func(id outbox.ID) error {
			err := wantDeadLetter(ctx, o, verb, id)
			if err == nil && verb == "replay" {
				err = isPossible(ctx, o, retryAct, id) // possible for a dead letter that is not past its deadline
			}
			return err
		})
	}
	if err := p.sure(ctx, c, verb, len(ids), "dead letters"); err != nil {
		return err
	}
	return p.onEach(ids, "", func(id outbox.ID) error {
		if err := wantDeadLetter(ctx, o, verb, id); err != nil {
			return err
		}
		// It may have been retried since that look.
		if to, ok := o.(*operator.Operator); ok {
			_, err := a.do(to.Only(deadLetters...), ctx, id)
			if moved, is := errors.AsType[*operator.StatusError](err); is {
				moved.Act = verb // rather than retry
			}
			return err
		}
		done, err := o.(*remote).onDeadLetter(ctx, a, id) // the other letterActs
		if !done && err == nil {
			if err = wantDeadLetter(ctx, o, verb, id); err == nil {
				err = fmt.Errorf("%s job %s: %w", verb, id, operator.ErrPastDeadline)
			}
		}
		return err
	})
}

// wantDeadLetter refuses other jobs: "jobs retry" is also for waiting ones.
func wantDeadLetter(ctx context.Context, o letterActs, verb string, id outbox.ID) error {
	job, err := o.Job(ctx, id)
	if err == nil && !slices.Contains(deadLetters, job.Status) {
		err = &operator.StatusError{ID: id, Status: job.Status, Act: verb}
	}
	return err
}

// follow shows the progress of an act on many, and finally its result.
func (p *program) follow(verb string, steps iter.Seq2[operator.BulkProgress, error]) error {
	var last operator.BulkProgress
	var failed error
	bar := isTerminal(p.stderr)
	for progress, err := range steps {
		last, failed = progress, err
		if bar {
			fmt.Fprintf(p.stderr, "\r%s", progressBar(progress))
		}
	}
	if bar {
		fmt.Fprintln(p.stderr)
	}
	fmt.Fprintf(p.stdout, "%s: %d done, %d passed over\n", verb, last.Done, last.Passed)
	if failed != nil && !last.FailedUntil.IsZero() {
		return fmt.Errorf("%w; to go on, repeat it with --failed-until %s", failed,
			last.FailedUntil.UTC().Format(time.RFC3339Nano))
	}
	return failed
}

func progressBar(p operator.BulkProgress) string {
	const width = 30
	part := 1.0
	if p.Matched > 0 {
		part = min(1, float64(p.Done+p.Passed)/float64(p.Matched))
	}
	full := int(part * width)
	return fmt.Sprintf("[%s%s] %3.0f %% %d of %d", strings.Repeat("#", full), strings.Repeat(".", width-full), part*100,
		p.Done+p.Passed, p.Matched)
}

// sure asks before an act on more than one. Without a terminal it refuses: a script must pass --yes.
func (p *program) sure(ctx context.Context, c *cli.Command, verb string, n int, what string) error {
	if n <= 1 || c.Bool("yes") {
		return nil
	}
	question := fmt.Sprintf("%s %d %s?", verb, n, what)
	nobody := usagef("%s Not a terminal: pass --yes to confirm", question)
	if stdin, ok := p.stdin.(*os.File); !ok || !isScreen(stdin) {
		return nobody
	}
	if isScreen(p.stderr) {
		return p.confirm(ctx, p.stderr, question)
	}
	screen, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0) // also with 2>file
	if err != nil {
		return nobody
	}
	defer screen.Close()
	return p.confirm(ctx, screen, question)
}

// isScreen reports whether w is a terminal for questions. Unlike isTerminal it refuses /dev/null, which cannot answer.
func isScreen(w io.Writer) bool {
	if !isTerminal(w) {
		return false
	}
	about, err := w.(*os.File).Stat()
	null, nullErr := os.Stat(os.DevNull)
	return err == nil && (nullErr != nil || !os.SameFile(about, null))
}

var errDeclined = errors.New("nothing was done")

func (p *program) confirm(ctx context.Context, screen io.Writer, question string) error {
	fmt.Fprintf(screen, "%s [y/N] ", question)
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() { // only a line, or the end of the program, ends it
		text, err := bufio.NewReader(p.stdin).ReadString('\n')
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(screen)
		return errDeclined
	case answer := <-read:
		if answer.err != nil && !errors.Is(answer.err, io.EOF) {
			return fmt.Errorf("read the answer: %w", answer.err)
		}
		switch strings.ToLower(strings.TrimSpace(answer.text)) {
		case "y", "yes":
			return nil
		}
		return errDeclined
	}
}

// actor returns the person who runs this command, for the audit.
func (p *program) actor() operator.Actor {
	host, _ := os.Hostname()
	name := p.getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return operator.Actor{Name: cmp.Or(name, "somebody") + "@" + cmp.Or(host, "host")}
}
