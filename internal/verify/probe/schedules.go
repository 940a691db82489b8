package probe

import (
	"time"

	"github.com/posthaste-dev/posthaste/schedule"
)

// Schedules that a worker declares with VERIFY_SCHEDULES=on.
const (
	Seconds = "seconds" // ticks every second
	Minutes = "minutes" // ticks every minute
)

func schedules() []schedule.Schedule {
	options := schedule.Options{MaxAttempts: maxAttempts, Missed: schedule.All, MissedLimit: 1000}
	return []schedule.Schedule{
		schedule.Every(Seconds, time.Second, Task{Do: "sleep", Ms: 50}, options),
		schedule.Cron(Minutes, "* * * * *", "UTC", Task{Do: "sleep", Ms: 50}, options),
	}
}
