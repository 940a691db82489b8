package outbox

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEncodeGivesWhatEnqueueStores(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args Args
		want Raw
	}{
		"typed":    {greet{Name: "Ada"}, Raw{KindName: "greet", Payload: []byte(`{"name":"Ada"}`), ContentType: "application/json"}},
		"raw":      {Raw{KindName: "k", Payload: []byte("\x00\xff"), ContentType: "application/protobuf"}, Raw{KindName: "k", Payload: []byte("\x00\xff"), ContentType: "application/protobuf"}},
		"no bytes": {Raw{KindName: "k", ContentType: "text/plain"}, Raw{KindName: "k", Payload: []byte{}, ContentType: "text/plain"}},
	}
	for name, tt := range tests {
		got, err := Encode(tt.args, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(Args(tt.want), got.Args); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestEncodeRefusesWhatEnqueueDoes(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{{Queue: "no spaces"}, {Priority: 1 << 20}} {
		_, err := Encode(greet{}, opts)
		if _, ok := errors.AsType[*InvalidError](err); !ok {
			t.Errorf("Encode with %+v: got %v, want an InvalidError", opts, err)
		}
	}
}
