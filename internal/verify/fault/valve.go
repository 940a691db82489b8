package fault

import "sync"

// Valve can stop a flow of bytes in one direction. Its zero value is open.
type Valve struct {
	mu   sync.Mutex
	shut chan struct{} // nil while open; closed by Open
}

// Shut holds everything back from now on.
func (v *Valve) Shut() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shut == nil {
		v.shut = make(chan struct{})
	}
}

// Open lets everything through, including what was held back.
func (v *Valve) Open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shut != nil {
		close(v.shut)
		v.shut = nil
	}
}

// pass waits while the valve is shut.
func (v *Valve) pass() {
	v.mu.Lock()
	shut := v.shut
	v.mu.Unlock()
	if shut != nil {
		<-shut
	}
}
