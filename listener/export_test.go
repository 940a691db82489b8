package listener

import "time"

// SetPatience sets how long a canary may take, whatever CanaryInterval is.
func (c *Config) SetPatience(patience time.Duration) { c.patience = patience }
