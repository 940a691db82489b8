package api

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// form is the notation that a value needs in order to be decoded: a schema accepts 1e2 as an integer, but encoding/json
// refuses it without naming the place.
type form int

const (
	anyForm form = iota
	integerForm
	timeForm
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

// refusedEmpty maps those fields of a body's type, by JSON name, that have the tag empty to advice: what to do instead
// of sending an empty text, an empty list or the zero time. A field has the tag if these would count as omitted: in a
// condition that would widen the selection, and in a change it would drop a part. A script sends them when a variable
// is unset, and so does a program without a value.
func refusedEmpty(of reflect.Type) map[string]string {
	if of == nil || of.Kind() != reflect.Struct {
		return nil
	}
	instead := map[string]string{}
	for _, field := range reflect.VisibleFields(of) {
		if tag := field.Tag.Get("empty"); tag != "" {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			instead[name] = tag
		}
	}
	return instead
}

// refuseEmpty makes empty values of a member of a body refused or, if it has members itself, those of each of them.
func (sh *shape) refuseEmpty(instead string) {
	if sh == nil {
		return
	}
	for _, member := range sh.members {
		member.refuseEmpty(instead)
	}
	sh.instead = instead
}

// maxMisfits is how many of them a problem names.
const maxMisfits = 20

// misfit records a value that cannot be decoded; the scan continues.
func (s *scanner) misfit(detail string) {
	if len(s.misfits) < maxMisfits {
		s.misfits = append(s.misfits, Fault{Pointer: s.pointer(), Detail: detail})
	}
}

// numberFits checks the notation of a number; one without a schema, in a payload, may have any.
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

// textFits checks for an empty text and for the zero time; the schema refuses invalid times.
func (s *scanner) textFits(sh *shape, text []byte) {
	switch {
	case sh == nil || sh.instead == "":
	case len(text) == 0 && sh.form != timeForm:
		s.emptyFits(sh)
	case sh.form == timeForm:
		if at, err := time.Parse(time.RFC3339, string(text)); err == nil && at.IsZero() {
			s.misfit("is the zero time: " + sh.instead)
		}
	}
}

// emptyFits checks an empty text or list.
func (s *scanner) emptyFits(sh *shape) {
	if sh != nil && sh.instead != "" {
		s.misfit("is empty: " + sh.instead)
	}
}

// readable returns what is wrong with a body, if anything: it is not JSON, or cannot be decoded as the expected type.
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

// pointer returns the place of the current value.
func (s *scanner) pointer() string {
	var pointer strings.Builder
	pointer.WriteByte('#')
	for _, name := range s.path {
		pointer.WriteByte('/')
		pointer.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	return pointer.String()
}
