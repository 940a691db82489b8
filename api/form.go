package api

import (
	"errors"
	"reflect"
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

// refusedEmpty are the fields of the type of a body, by their JSON names, that have the tag empty: what to do instead
// of sending an empty text, an empty list or the zero time. A field has it if these would be taken as if it were left
// out: of a condition that widens what is meant, and of a change it drops a part. A script sends them whose variable
// is not set, and a program that has no value.
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

// refuseEmpty refuses empty values of a member of a body or, if it has members itself, of each of these.
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

// textFits looks for a text that is empty, and for the zero time; what is no time at all is the schema's to refuse.
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

// emptyFits looks at a text or a list that is empty.
func (s *scanner) emptyFits(sh *shape) {
	if sh != nil && sh.instead != "" {
		s.misfit("is empty: " + sh.instead)
	}
}

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
