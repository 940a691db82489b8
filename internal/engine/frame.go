package engine

import "bytes"

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
