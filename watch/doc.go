// Package watch reads the whole state of a database for many viewers at once: how many jobs are open ([Counts]),
// which have changed ([Changes]), how it goes ([Overviews], [Marks]), and what is wrong ([Problems], [Examinations]).
// However many look, the database is asked once, and not at all while nobody looks. Each of these types works by
// itself, is safe for concurrent use, and runs nothing that has to be stopped; a process has one of each ([State]).
package watch
