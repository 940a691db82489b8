package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"
)

// showScreen draws frames on the terminal until q, Ctrl-C or the end of ctx, and restores the terminal.
func (p *program) showScreen(ctx context.Context, w *lookout, interval time.Duration) error {
	looks, stop := context.WithCancel(ctx)
	defer stop() // a look in progress does not delay the end
	_, err := tea.NewProgram(screen{ctx: looks, watch: w, interval: interval},
		tea.WithContext(ctx), tea.WithInput(p.stdin), tea.WithOutput(p.stdout.screen()),
		tea.WithoutSignalHandler()).Run()
	if err != nil && ctx.Err() == nil && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("draw on the terminal: %w", err)
	}
	return nil
}

// screen is the terminal with its content. One look at a time changes its watch, which is drawn only between looks.
type screen struct {
	ctx           context.Context // of the looks: bubbletea's commands have none
	watch         *lookout
	interval      time.Duration
	width, height int
	shown         string
}

type (
	looked struct{}  // the watch has been updated
	due    time.Time // it is time for the next look
)

func (s screen) Init() tea.Cmd { return s.look }

func (s screen) look() tea.Msg {
	s.watch.again(s.ctx)
	return looked{}
}

func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		if key := msg.String(); key == "q" || key == "ctrl+c" || key == "esc" {
			return s, tea.Quit
		}
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case looked:
		s.shown = s.watch.frame()
		return s, tea.Tick(s.interval, func(t time.Time) tea.Msg { return due(t) })
	case due:
		return s, s.look
	}
	return s, nil
}

func (s screen) View() tea.View {
	shown := s.shown
	if shown == "" {
		shown = "looking …"
	}
	v := tea.NewView(fit(shown, s.width, s.height))
	v.AltScreen = true
	v.WindowTitle = "posthaste top"
	return v
}
