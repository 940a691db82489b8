// Package migrate has scripts that move what waits in other systems into Posthaste: docs/migrate/to-posthaste.md shows
// them, and the tests run them on tables as those systems have them. The program of folder asynq does it for tasks in
// Redis, in a module of its own; so is folder river, whose tests have River itself fill the tables, and run both
// systems.
package migrate
