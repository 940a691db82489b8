package outbox

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Args is what a job is to be done with. Kind names what is to be done, the same
// for every value of the type ("receipt.send"), in 1 to 128 letters, digits and _ . : / -,
// first a letter or digit; the value itself is stored as JSON.
type Args interface{ Kind() string }

// Raw is a job, or an event, whose payload is bytes that are stored exactly as they are
// given: protobuf, Avro, or JSON that was made elsewhere.
type Raw struct {
	KindName    string // what Kind and Topic return
	Payload     []byte // of at most 4 MiB, as it is stored
	ContentType string // "" is "application/json"; then Payload must be valid JSON
}

// Kind is KindName.
func (r Raw) Kind() string { return r.KindName }

// Topic is KindName.
func (r Raw) Topic() string { return r.KindName }

const contentJSON = engine.ContentJSON

// wording is what the errors of a request call its parts.
type wording struct{ value, are, options, verb string }

var (
	ofJob   = wording{"Args", "are", "Options", "enqueue"}
	ofEvent = wording{"Event", "is", "EventOptions", "publish"}
)

// encode returns what is stored of an Args or an Event.
func encode(args any, w wording) (payload []byte, contentType string, err error) {
	switch args := args.(type) {
	case Raw:
		payload, contentType, err = args.encode()
	case *Raw:
		payload, contentType, err = args.encode()
	default:
		contentType = contentJSON
		if payload, err = json.Marshal(args); err != nil {
			err = invalid(w.value, "cannot be encoded as JSON: %v", err)
		} else if !utf8.Valid(payload) { // a json.RawMessage or MarshalJSON is not checked for it
			err = invalid(w.value, "%s not valid UTF-8 as JSON", w.are)
		}
	}
	return payload, contentType, err
}

func (r Raw) encode() ([]byte, string, error) {
	contentType := r.ContentType
	if contentType == "" {
		contentType = contentJSON
	}
	if err := validText("Raw.ContentType", contentType); err != nil {
		return nil, "", err
	}
	if len(contentType) > engine.MaxNameBytes {
		return nil, "", invalid("Raw.ContentType", "is %d bytes long, want at most %d", len(contentType), engine.MaxNameBytes)
	}
	if contentType == contentJSON {
		if !utf8.Valid(r.Payload) {
			return nil, "", invalid("Raw.Payload", "is not valid UTF-8, so not JSON")
		}
		if !json.Valid(r.Payload) {
			return nil, "", invalid("Raw.Payload", "is not valid JSON: %s", jsonFault(r.Payload))
		}
	}
	if r.Payload == nil {
		return []byte{}, contentType, nil // NULL would be refused
	}
	return r.Payload, contentType, nil
}

// jsonFault says what is wrong and where.
func jsonFault(payload []byte) string {
	var v any
	if err := json.Unmarshal(payload, &v); err != nil {
		return err.Error()
	}
	return "trailing data"
}
