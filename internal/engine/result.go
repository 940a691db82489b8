package engine

import (
	"encoding/json"
	"errors"
)

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
