/*
 * The lease of a job: claim, extend, settle, expire, give back, cancel, retry and
 * dismiss, with attempts that crash, pause and act later on what they knew.
 *
 * One atomic block is one SQL statement. Between two blocks of a process the
 * others may do anything, for any length of time: that is every pause there is.
 * Time itself is a choice: a lease may lapse at any moment after the claim.
 *
 * README.md says what is checked, with which bounds, and what each of the planted
 * errors (#ifdef) does.
 */

#ifndef MAX_LEASES
#define MAX_LEASES   4	/* of each job; the last one meets no more bad luck, so that every run ends */
#endif
#ifndef ACTS
#define ACTS         2	/* of the operator */
#endif
#define JOBS         2
#define ATTEMPTS     3	/* under way at once: the two first in one worker process, the third in another */
#define MAX_ATTEMPTS 2

#define NOBODY ATTEMPTS
#define NONE   JOBS
#define NAME(a) ((a) / 2)	/* the worker's name: stable, shared by its attempts */

mtype = { pending, running, retrying, failed, dead, succeeded, cancelled, dismissed };

typedef Job {
	mtype status = pending;
	unsigned epoch : 4;
	unsigned attempt : 3;
	bit owner;	/* while running: the worker's name */
	bit lapsed;	/* lease_expires_at has passed; nobody need have noticed */
	bit left;	/* the row has moved to the history */

	/* What is true, whatever the columns say. No statement reads these. */
	unsigned holder : 2 = NOBODY;	/* the attempt whose lease counts */
	unsigned leases : 3;	/* how many there have been */
};

/* What an attempt believes. It outlives the lease: that makes a zombie. */
typedef Lease {
	unsigned job : 2 = NONE;
	unsigned epoch : 4;
	unsigned attempt : 3;
};

Job job[JOBS];
Lease hand[ATTEMPTS];
unsigned acts : 2 = ACTS;

#define CLOSED(s) ((s) == succeeded || (s) == cancelled || (s) == dismissed)
#define LETTER(s) ((s) == failed || (s) == dead)

#define LEGAL(from, to) ( \
	   ((from) == pending  && ((to) == running || (to) == cancelled)) \
	|| ((from) == retrying && ((to) == running || (to) == cancelled)) \
	|| ((from) == running  && (to) != running && (to) != dismissed) \
	|| (LETTER(from)       && ((to) == pending || (to) == dismissed)))

#define LUCK(j) (job[j].leases < MAX_LEASES)	/* may something go wrong with this lease? */

#ifdef RETRYING_IS_NEVER_CLAIMED
#define CLAIMABLE(j) (job[j].status == pending)
#else
#define CLAIMABLE(j) (job[j].status == pending || job[j].status == retrying)
#endif

/* The fence of every write by a worker. */
#define FENCE(j, a) (!job[j].left && job[j].epoch == hand[a].epoch)

#if defined(SETTLE_WITHOUT_EPOCH)
#define SETTLES(j, a) (job[j].status == running)
#elif defined(SETTLE_BY_WORKER_NAME)
#define SETTLES(j, a) (job[j].status == running && job[j].owner == NAME(a))
#elif defined(ATTEMPT_AS_FENCE)
#define SETTLES(j, a) (job[j].status == running && job[j].attempt == hand[a].attempt)
#else
#define SETTLES(j, a) FENCE(j, a)
#endif

#ifdef EXTEND_WITHOUT_EPOCH
#define EXTENDS(j, a) (job[j].status == running)
#else
#define EXTENDS(j, a) FENCE(j, a)
#endif

inline move(j, to) {
	assert(LEGAL(job[j].status, to));	/* closed stays closed */
	job[j].status = to
}

inline raise(j) {
	job[j].epoch++
}

inline forget(a) {
	hand[a].job = NONE;
	hand[a].epoch = 0;
	hand[a].attempt = 0
}

inline take(j, a) {
	assert(job[j].holder == NOBODY);	/* one live lease */
	job[j].status = running;
	raise(j);
	job[j].attempt++;
	job[j].owner = NAME(a);
	job[j].lapsed = 0;
	job[j].holder = a;
	job[j].leases++;
	assert(job[j].attempt <= MAX_ATTEMPTS);	/* deaths are bounded */
	hand[a].job = j;
	hand[a].epoch = job[j].epoch;
	hand[a].attempt = job[j].attempt;
	/* no (job, epoch) is handed out twice while anybody remembers it */
	assert(!(a != 0 && hand[0].job == j && hand[0].epoch == job[j].epoch));
	assert(!(a != 1 && hand[1].job == j && hand[1].epoch == job[j].epoch));
	assert(!(a != 2 && hand[2].job == j && hand[2].epoch == job[j].epoch))
}

/* A worker's write took effect: it must have been its to make. */
inline owned(j, a) {
	assert(job[j].holder == a)
}

inline free(j) {
	job[j].holder = NOBODY;
	job[j].owner = 0;	/* lease_owner and lease_expires_at are NULL outside running */
	job[j].lapsed = 0
}

inline succeed(j, a) {
	if
	:: SETTLES(j, a) ->
		owned(j, a);
		move(j, succeeded);
		job[j].left = 1;
		free(j)
	:: else
	fi
}

inline fail(j, a, to) {
	if
	:: SETTLES(j, a) ->
		owned(j, a);
		if
		:: to == retrying && hand[a].attempt >= MAX_ATTEMPTS -> move(j, dead)
		:: else -> move(j, to)
		fi;
		raise(j);
		free(j)
	:: else
	fi
}

inline snooze(j, a) {
	if
	:: SETTLES(j, a) ->
		owned(j, a);
		move(j, pending);
		job[j].attempt--;
#ifndef SNOOZE_KEEPS_EPOCH
		raise(j);
#endif
		free(j)
	:: else
	fi
}

active [ATTEMPTS] proctype Attempt() {
	unsigned j : 2 = NONE;

end_idle:
#ifdef CLAIM_WITHOUT_LOCK
	if
	:: CLAIMABLE(0) -> j = 0
	:: CLAIMABLE(1) -> j = 1
	fi;
	atomic { take(j, _pid) };
#else
	if
	:: atomic { CLAIMABLE(0) -> j = 0; take(0, _pid) }
	:: atomic { CLAIMABLE(1) -> j = 1; take(1, _pid) }
	fi;
#endif

working:
	atomic {
		if
		:: EXTENDS(j, _pid) -> owned(j, _pid); job[j].lapsed = 0; goto working
		:: true -> succeed(j, _pid)
		:: LUCK(j) -> fail(j, _pid, retrying)
		:: true -> fail(j, _pid, failed)	/* for good, by the handler's word */
		:: LUCK(j) -> snooze(j, _pid)	/* or interrupted */
		:: job[j].holder != _pid -> goto stop	/* a zombie dies, or is told by a refused extension */
		:: job[j].holder == _pid && LUCK(j) -> job[j].holder = NOBODY; goto stop	/* it dies; or the claim's answer never came */
		fi;
		if
		:: true -> goto working	/* the answer is lost: the settlement is sent again, or something else is */
		:: true	/* settled; or refused, the lease being lost */
		fi;
stop:
		forget(_pid);
		j = NONE;
		goto end_idle
	}
}

inline expire(j) {
	if
#ifdef REAPER_IGNORES_MAX_ATTEMPTS
	:: job[j].attempt >= MAX_ATTEMPTS -> move(j, retrying)
#else
	:: job[j].attempt >= MAX_ATTEMPTS -> move(j, dead)
#endif
	:: else -> move(j, retrying)
	fi;
#ifndef EXPIRY_KEEPS_EPOCH
	raise(j);
#endif
	free(j)
}

/* A worker gives back what carries its name and is in nobody's hand there. */
#define HELD(j, name) \
	   ((name) == 0 && (hand[0].job == j || hand[1].job == j)) \
	|| ((name) == 1 && hand[2].job == j)

#ifdef ORPHANS_MAY_BE_HELD
#define ORPHAN(j) (job[j].status == running && !job[j].lapsed && LUCK(j))
#else
#define ORPHAN(j) (job[j].status == running && !job[j].lapsed && !(HELD(j, job[j].owner)))
#endif

inline give_back(j) {
	assert(job[j].holder == NOBODY);
	move(j, pending);
	job[j].attempt--;
	raise(j);
	free(j)
}

#define MAY_LAPSE(j) (job[j].status == running && !job[j].lapsed && (LUCK(j) || job[j].holder == NOBODY))
#define LAPSED(j) (job[j].status == running && job[j].lapsed)

active proctype Reaper() {
end:
	do
	:: atomic { MAY_LAPSE(0) -> job[0].lapsed = 1 }
	:: atomic { MAY_LAPSE(1) -> job[1].lapsed = 1 }
	:: atomic { LAPSED(0) -> expire(0) }
	:: atomic { LAPSED(1) -> expire(1) }
	:: atomic { ORPHAN(0) -> give_back(0) }
	:: atomic { ORPHAN(1) -> give_back(1) }
	od
}

inline cancel(j) {
	move(j, cancelled);
#ifndef CANCEL_WITHOUT_FENCE
	raise(j);
	job[j].left = 1;
#endif
	free(j);
	acts--
}

inline retry(j) {
	if
	:: LETTER(job[j].status) -> move(j, pending); job[j].attempt = 0
	:: else
	fi;
#ifdef RETRY_RESETS_EPOCH
	job[j].epoch = 0;
#else
	raise(j);
#endif
	acts--
}

inline dismiss(j) {
	move(j, dismissed);
	raise(j);
	job[j].left = 1;
	acts--
}

#define CANCELLABLE(j) (CLAIMABLE(j) || job[j].status == running)
#define RETRYABLE(j) (LUCK(j) && (CLAIMABLE(j) || LETTER(job[j].status)))

active proctype Operator() {
end:
	do
	:: atomic { acts && CANCELLABLE(0) -> cancel(0) }
	:: atomic { acts && CANCELLABLE(1) -> cancel(1) }
	:: atomic { acts && RETRYABLE(0) -> retry(0) }
	:: atomic { acts && RETRYABLE(1) -> retry(1) }
	:: atomic { acts && LETTER(job[0].status) -> dismiss(0) }
	:: atomic { acts && LETTER(job[1].status) -> dismiss(1) }
	od
}

#define SETTLED(j) (CLOSED(job[j].status) || LETTER(job[j].status))

/* When nothing can happen any more, no job may be left that nobody will run. */
active proctype NothingLost() {
end:
	timeout -> assert(SETTLED(0) && SETTLED(1))
}
