package console

import (
	"net/http"
	"time"
	_ "time/tzdata" // makes zones available wherever the program runs

	"github.com/posthaste-dev/posthaste/access"
)

// These are the names of the cookies with a viewer's preferences. app.js, which knows the browser's zone, also sets the
// zone's.
const (
	themeCookie   = "ph_theme"
	zoneCookie    = "ph_zone"
	densityCookie = "ph_density"
	keysCookie    = "ph_keys"
)

const yearSeconds = 365 * 24 * 60 * 60

// readPreferences reads the viewer's preferences. An unreadable one takes its default.
func (v *visit) readPreferences() {
	value := func(name string) string {
		if c, err := v.r.Cookie(name); err == nil {
			return c.Value
		}
		return ""
	}
	v.zone = time.UTC
	if zone, ok := zoneOf(value(zoneCookie)); ok {
		v.zone = zone
	}
	if theme := value(themeCookie); theme == "light" || theme == "dark" {
		v.theme = theme
	}
	if value(densityCookie) == "compact" {
		v.density = "compact"
	}
	if value(keysCookie) == "off" {
		v.keys = "off"
	}
}

// zoneOf returns the zone with an IANA name.
func zoneOf(name string) (*time.Location, bool) {
	if name == "" || name == "Local" || len(name) > 64 {
		return nil, false
	}
	zone, err := time.LoadLocation(name) // refuses paths
	return zone, err == nil
}

// settings sets the preferences that the form contains, and leaves the others.
func (s *site) settings(v *visit) error {
	if v.params.Has("theme") {
		theme := v.param("theme")
		if theme != "light" && theme != "dark" && theme != "system" {
			return refusal{http.StatusBadRequest, "There is no such theme", "There are light, dark and system."}
		}
		s.cookie.set(v.w, themeCookie, theme, yearSeconds, true)
	}
	if v.params.Has("density") {
		density := v.param("density")
		if density != "compact" && density != "usual" {
			return refusal{http.StatusBadRequest, "There is no such density", "There are usual and compact."}
		}
		s.cookie.set(v.w, densityCookie, density, yearSeconds, true)
	}
	if v.params.Has("keys") {
		keys := v.param("keys")
		if keys != "on" && keys != "off" {
			return refusal{http.StatusBadRequest, "There is no such setting of the keys", "There are on and off."}
		}
		s.cookie.set(v.w, keysCookie, keys, yearSeconds, true)
	}
	if v.params.Has("zone") {
		if _, ok := zoneOf(v.param("zone")); !ok {
			return refusal{
				http.StatusBadRequest, "There is no such time zone",
				"Zones have names like UTC, Europe/Berlin or Asia/Kolkata.",
			}
		}
		s.cookie.set(v.w, zoneCookie, v.param("zone"), yearSeconds, false)
	}
	return v.redirect(v.backTo())
}

// zones are those that the page offers; any other can be typed.
var zones = []string{
	"UTC", "America/Los_Angeles", "America/Chicago", "America/New_York", "America/Sao_Paulo", "Europe/London",
	"Europe/Berlin", "Europe/Kyiv", "Africa/Lagos",
	"Asia/Dubai", "Asia/Kolkata", "Asia/Singapore", "Asia/Shanghai", "Asia/Tokyo", "Australia/Sydney",
	"Pacific/Auckland",
}

// abilities describe what each capability allows people to do here.
var abilities = []struct {
	capability access.Capability
	what       string
}{
	{access.JobsRead, "see jobs, how they stand, and their results"},
	{access.AdminRead, "see how jobs are carried out: attempts, workers, queues, keys, schedules, the audit"},
	{access.PayloadRead, "see payloads, headers and checkpoints"},
	{access.AdminStream, "have pages update themselves"},
	{access.JobsCancel, "cancel jobs"},
	{access.AdminMutate, "retry, dismiss and release jobs; pause and limit queues; act on keys and schedules"},
	{access.JobsEnqueue, "enqueue jobs"},
}

func (s *site) me(v *visit) error { return v.render(mePage(v)) }
