package engine

import (
	"bytes"
	"encoding/json"
	"errors"
)

// FrameMagic begins a stored result that a protector sealed: results have no column for their content type. No JSON
// begins with it.
const FrameMagic = "\x00ph\x02"

// Frame returns a result in its stored form, with the type of its content before it.
func Frame(contentType string, content []byte) []byte {
	framed := append([]byte(FrameMagic), byte(len(contentType)))
	return append(append(framed, contentType...), content...)
}

// Unframe returns the arguments that Frame was given, without a type if the frame is cut off.
func Unframe(stored []byte) (contentType string, content []byte, framed bool) {
	rest, framed := bytes.CutPrefix(stored, []byte(FrameMagic))
	if !framed || len(rest) == 0 || len(rest) < 1+int(rest[0]) {
		return "", nil, framed
	}
	n := 1 + int(rest[0])
	return string(rest[1:n]), rest[n:], true
}

// ErrNoResult is await.ErrNoResult.
var ErrNoResult = errors.New("the job succeeded without a result")

// DecodeResult decodes a stored result. If a protector sealed it, sealed points to the content type, which is "" if the
// frame is cut off.
func DecodeResult[R any](stored []byte) (result R, sealed *string, err error) {
	if stored == nil {
		if _, none := any(result).(struct{}); none {
			return result, nil, nil
		}
		return result, nil, ErrNoResult
	}
	if contentType, _, framed := Unframe(stored); framed {
		return result, &contentType, nil
	}
	return result, nil, json.Unmarshal(stored, &result)
}
