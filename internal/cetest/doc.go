// Package cetest has tests that read what sinks send by the SDK of CloudEvents.
package cetest
