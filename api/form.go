package api

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// form is what a value has to be so that it can be read at all: a schema lets 1e2 pass
// for an integer, and encoding/json, which then refuses it, loses the place.
type form int

const (
	anyForm form = iota
	integerForm
	timeForm
	// In a filter: the zero time, an empty text or list would leave a condition out, and so
	// widen what is meant. They are what a script sends whose variable is not set.
	boundForm
	conditionForm
)

func formOf(s *huma.Schema) form {
	switch {
	case s.Type == huma.TypeInteger:
		return integerForm
	case s.Type == huma.TypeString && s.Format == "date-time":
		return timeForm
	}
	return anyForm
}

// conditions makes conditions of the members of a filter.
func (sh *shape) conditions() {
	if sh == nil {
		return
	}
	for _, member := range sh.members {
		switch {
		case member == nil:
		case member.form == timeForm:
			member.form = boundForm
		case member.form == anyForm:
			member.form = conditionForm
		}
	}
}

// maxMisfits is how many of them a problem names.
const maxMisfits = 20

// misfit notes a value that cannot be read, and the scan goes on.
func (s *scanner) misfit(detail string) {
	if len(s.misfits) < maxMisfits {
		s.misfits = append(s.misfits, Fault{Pointer: s.pointer(), Detail: detail})
	}
}

// numberFits looks at a number as it is written; one of which there is no schema, in a
// payload, may be any.
func (s *scanner) numberFits(sh *shape, text string) {
	if sh == nil {
		return
	}
	shown := text
	if len(shown) > 32 {
		shown = shown[:32] + "…"
	}
	if sh.form == integerForm {
		switch _, err := strconv.ParseInt(text, 10, 64); {
		case errors.Is(err, strconv.ErrRange):
			s.misfit("is " + shown + ", want an integer of 64 bits")
		case err != nil:
			s.misfit("is " + shown + ", want an integer, written without a fraction and an exponent")
		}
		return
	}
	if _, err := strconv.ParseFloat(text, 64); err != nil {
		s.misfit("is " + shown + ", which is too large")
	}
}

// textFits looks at a condition; what is no time at all is the schema's to refuse.
func (s *scanner) textFits(sh *shape, text []byte) {
	switch {
	case sh == nil:
	case sh.form == conditionForm && len(text) == 0:
		s.isEmpty()
	case sh.form == boundForm:
		if at, err := time.Parse(time.RFC3339, string(text)); err == nil && at.IsZero() {
			s.misfit("is the zero time, which bounds nothing: leave it out to mean any")
		}
	}
}

func (s *scanner) isEmpty() { s.misfit("is empty: leave it out to mean any") }

// readable says what is wrong with a body, if anything is: it cannot be read, or not as
// what it is there for.
func readable(data []byte, sh *shape) *Problem {
	fault, misfits := checkJSON(data, sh)
	switch {
	case fault != nil:
		return malformed.because("", *fault)
	case len(misfits) > 0:
		return invalidInput.because("", misfits...)
	}
	return nil
}

// pointer is the place of the value that is read.
func (s *scanner) pointer() string {
	var pointer strings.Builder
	pointer.WriteByte('#')
	for _, name := range s.path {
		pointer.WriteByte('/')
		pointer.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	return pointer.String()
}
