package checker

// Orphans compares business rows with jobs by the key that they share.
func Orphans(rows, jobs []string) (rowsWithoutJob, jobsWithoutRow, twice []string) {
	have := make(map[string]uint8, len(jobs))
	for _, key := range jobs {
		if have[key]++; have[key] == 2 {
			twice = append(twice, key)
		}
	}
	for _, key := range rows {
		if _, ok := have[key]; !ok {
			rowsWithoutJob = append(rowsWithoutJob, key)
		}
		delete(have, key)
	}
	for key := range have {
		jobsWithoutRow = append(jobsWithoutRow, key)
	}
	return rowsWithoutJob, jobsWithoutRow, twice
}

// Effects compares the jobs that must have made an effect with the effects that exist: exactly one each (L3).
func Effects(wanted, made []string) (missing, duplicated, nobodys []string) {
	count := make(map[string]int, len(made))
	for _, id := range made {
		count[id]++
	}
	for _, id := range wanted {
		switch n := count[id]; {
		case n == 0:
			missing = append(missing, id)
		case n > 1:
			duplicated = append(duplicated, id)
		}
		delete(count, id)
	}
	for id := range count {
		nobodys = append(nobodys, id)
	}
	return missing, duplicated, nobodys
}
