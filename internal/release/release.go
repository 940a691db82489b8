// Package release numbers the releases that change the schema, and says which builds work with a schema that another
// build has migrated (docs/operate/upgrading.md).
//
// A build works with the schema of its own release and with that of the next one. So each migration stores the floor:
// the oldest release whose builds work with what it made. An older build reads it and refuses.
package release

import "fmt"

// names are the releases that changed the schema, oldest first. A release that adds a numbered file, or changes a
// function or a view, appends its own: TestATaggedReleaseKeepsItsSchema of package migrations refuses it without.
var names = [...]string{"0.1.0"}

// Revision is the number of this build's release among those that changed the schema, from 1.
const Revision = len(names)

// Name returns the release that this build's schema is of.
func Name() string { return names[Revision-1] }

// Floor returns the oldest release whose builds work with this build's schema: the one before it.
func Floor() (revision int, name string) {
	revision = max(Revision-1, 1)
	return revision, names[revision-1]
}

// TooOldError reports that this build may not work with a database, because a release that is newer by more than one
// has migrated the schema.
type TooOldError struct {
	Build string // the release of this build
	Floor string // the oldest release whose builds work with the schema; "" if the database does not name it
}

func (e *TooOldError) Error() string {
	if e.Floor == "" {
		return fmt.Sprintf("this build (release %s) is too old for the database schema; %s", e.Build, e.Remedy())
	}
	return fmt.Sprintf("this build (release %s) is too old for the database schema, which needs release %s or newer",
		e.Build, e.Floor)
}

// Remedy says what to do about it.
func (e *TooOldError) Remedy() string {
	if e.Floor == "" {
		return "run the release that has migrated it, or a newer one"
	}
	return fmt.Sprintf("run release %s or a newer one", e.Floor)
}

// Check returns a [*TooOldError] if the floor that is stored in a database is above this build.
// The floor of a schema from before there were floors is 0 and "".
func Check(floor int, name string) error {
	if floor <= Revision {
		return nil
	}
	return &TooOldError{Build: Name(), Floor: name}
}
