package outbox

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Args are the arguments of a job. Kind names the work to be done and returns the same name for every value of the type
// ("receipt.send"): 1 to 128 letters, digits and _ . : / -, the first a letter or digit. The value itself is stored as
// JSON.
type Args interface{ Kind() string }

// Raw is a job, or an event, with a ready-made payload, whose bytes are stored unchanged: protobuf, Avro, or JSON that
// was encoded elsewhere.
type Raw struct {
	KindName    string // what Kind and Topic return
	Payload     []byte // at most 4 MiB, stored unchanged
	ContentType string // "" means "application/json"; Payload must then be valid JSON
}

// Kind returns r.KindName.
func (r Raw) Kind() string { return r.KindName }

// Topic returns r.KindName.
func (r Raw) Topic() string { return r.KindName }

const contentJSON = engine.ContentJSON

// wording holds the words that errors use for the parts of a request.
type wording struct{ value, are, options, verb string }

var (
	ofJob   = wording{"Args", "are", "Options", "enqueue"}
	ofEvent = wording{"Event", "is", "EventOptions", "publish"}
)

// encode returns the payload and content type to store for an Args or an Event.
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
		} else if !utf8.Valid(payload) { // json.Marshal does not check the output of json.RawMessage and MarshalJSON
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
		return nil, "", invalid("Raw.ContentType", "is %d bytes long, want at most %d", len(contentType),
			engine.MaxNameBytes)
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

// jsonFault describes what is wrong with the JSON, and where.
func jsonFault(payload []byte) string {
	var v any
	if err := json.Unmarshal(payload, &v); err != nil {
		return err.Error()
	}
	return "trailing data"
}
