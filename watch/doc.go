// Package watch reads the whole state of a database for many viewers at once: how many jobs are open ([Counts]), which
// have changed ([Changes]), on what else operators have acted ([Acts]), how work goes ([Overviews], [Marks]), and what
// is wrong ([Problems], [Examinations]). However many viewers there are, the database is queried once, and not at all
// while there are none. Each of these types works on its own, is safe for concurrent use, and runs nothing that must be
// stopped; a process has one of each ([State]).
package watch
