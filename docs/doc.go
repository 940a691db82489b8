// Package docs holds the manual, and tests that keep it true: its links lead somewhere, and pages that code names
// exist. README.md lists the pages.
package docs
