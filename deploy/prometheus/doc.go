// Package prometheus tests the rules for Prometheus that are beside it.
package prometheus
