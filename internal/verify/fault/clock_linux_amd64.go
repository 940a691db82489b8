package fault

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Clock is the wall clock of one process, changed for that process alone. Go asks the kernel's vDSO for the time, so
// neither a preloaded library nor a time namespace changes what it sees. TakeClock therefore replaces the vDSO's code
// in the memory of the process.
type Clock struct {
	memory *os.File
	offset int64 // where the added seconds are stored
}

// clockGettime asks the kernel for the time, and adds the seconds that are stored after the code to the wall clock. It
// leaves the monotonic clock as it is.
var clockGettime = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov  eax, 228 (clock_gettime; edi and rsi are the caller's)
	0x0f, 0x05, //                   syscall
	0x85, 0xff, //                   test edi, edi (0 is CLOCK_REALTIME)
	0x75, 0x0a, //                   jne  done
	0x48, 0x8b, 0x05, 0, 0, 0, 0, // mov  rax, [rip + distance]
	0x48, 0x01, 0x06, //             add  [rsi], rax
	0x31, 0xc0, //             done: xor  eax, eax
	0xc3, //                         ret
}

const distanceAt, distanceFrom = 14, 18 // in clockGettime: where it is, what it counts from

// TakeClock takes over the clock of a process that is stopped at its exec.
func TakeClock(pid int) (*Clock, error) {
	base, size, err := findVDSO(pid)
	if err != nil {
		return nil, err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	image := make([]byte, size)
	if _, err := memory.ReadAt(image, base); err != nil {
		return nil, errors.Join(fmt.Errorf("read the vDSO: %w", err), memory.Close())
	}
	function, room, err := findClockGettime(image)
	if err != nil {
		return nil, errors.Join(err, memory.Close())
	}
	start := base + function
	c := &Clock{memory: memory, offset: (start + int64(len(clockGettime)) + 7) &^ 7} // aligned: changes are atomic
	if c.offset+8 > start+room {
		return nil, errors.Join(fmt.Errorf("clock_gettime in the vDSO has %d bytes: too few", room), memory.Close())
	}
	code := bytes.Clone(clockGettime)
	binary.LittleEndian.PutUint32(code[distanceAt:], uint32(c.offset-start-distanceFrom))
	if err := c.Set(0); err != nil {
		return nil, errors.Join(err, memory.Close())
	}
	if _, err := memory.WriteAt(code, start); err != nil {
		return nil, errors.Join(fmt.Errorf("write to the vDSO: %w", err), memory.Close())
	}
	return c, nil
}

// Set sets the clock off by whole seconds, at once, also while the process runs.
func (c *Clock) Set(off time.Duration) error {
	var seconds [8]byte
	binary.LittleEndian.PutUint64(seconds[:], uint64(off/time.Second))
	if _, err := c.memory.WriteAt(seconds[:], c.offset); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// Close leaves the clock as it is.
func (c *Clock) Close() error { return c.memory.Close() }

func findVDSO(pid int) (base, size int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			var end int64
			_, err := fmt.Sscanf(line, "%x-%x", &base, &end)
			return base, end - base, err
		}
	}
	return 0, 0, errors.New("the process has no vDSO")
}

func findClockGettime(image []byte) (at, size int64, err error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, 0, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, 0, fmt.Errorf("read the vDSO's symbols: %w", err)
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			return int64(s.Value), int64(s.Size), nil
		}
	}
	return 0, 0, errors.New("the vDSO has no clock_gettime")
}
