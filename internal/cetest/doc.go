// Package cetest has tests that read what sinks send with the SDK of CloudEvents.
package cetest
