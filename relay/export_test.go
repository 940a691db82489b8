package relay

import "time"

func init() { heldWaits = []time.Duration{20 * time.Millisecond} }
