// Package prometheus tests the Prometheus rules in this directory.
package prometheus
