package console

import "github.com/posthaste-dev/posthaste/operator"

func (s *site) sinks(v *visit) error {
	all, err := v.operator.Sinks(v.ctx())
	if err != nil {
		return err
	}
	bridges, err := v.operator.Bridges(v.ctx())
	if err != nil {
		return err
	}
	return v.render(sinksPage(v, all, bridges))
}

// shownSink is a sink with its refused messages and its replays.
type shownSink struct {
	operator.Sink
	held    []operator.HeldMessage
	replays []operator.Replay
	done    doneAct
}

func (s *site) sink(v *visit) (err error) {
	var shown shownSink
	if shown.Sink, err = v.operator.Sink(v.ctx(), v.param("name")); err != nil {
		return err
	}
	if shown.held, err = v.operator.Held(v.ctx(), shown.Name, operator.HeldPlace{}, 0); err != nil {
		return err
	}
	if shown.replays, err = v.operator.Replays(v.ctx(), shown.Name, v.tenant()); err != nil {
		return err
	}
	if shown.done, err = v.justDone(stance{paused: shown.PausedAt}); err != nil {
		return err
	}
	return v.render(sinkPage(v, shown))
}

// bridgeSign returns how good or bad a bridge's state is.
func bridgeSign(b operator.Bridge) string {
	switch b.State() {
	case "fetching":
		return "good"
	case "away":
		return "bad"
	}
	return "warn"
}

// sinkSign returns how good or bad a sink's state is.
func sinkSign(s operator.Sink) string {
	switch s.State() {
	case "publishing":
		return "good"
	case "stuck", "away":
		return "bad"
	case "paused":
		return "paused"
	}
	return "warn"
}
