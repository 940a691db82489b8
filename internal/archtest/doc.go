// Package archtest holds the rules of the architecture as tests: which of our
// packages may import which, what importing them costs a user, and that each
// says what it is for. It has no code of its own.
package archtest
