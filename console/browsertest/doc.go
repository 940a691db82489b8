// Package browsertest opens the console in a browser: every page, in the program as it is built, on a real Postgres.
//
// There is no list of the pages. A crawl follows each link from the first page on, so that a new page is tested from
// the day on which it is linked; and a row of the console's table of routes that no crawl comes to is a failure. Each
// property is a check, a function that returns what is wrong with a page; and each check also runs where a proxy
// removes the defence that it tests, and must detect that (defence_test.go).
//
// The browser is Debian's Chromium. Without one the tests are skipped, and with POSTHASTE_BROWSER=required they fail.
//
//	main_test.go         the program and the browser, once for all tests
//	console_test.go      a console of a test: a database, a process, a token
//	crawl_test.go        finds the pages over HTTP, without a browser
//	tab_test.go          a page in the browser, and what it does
//	checks.js            what is asked of a page in the browser
//	fixture_test.go      the jobs: usual ones, and one whose every text is hostile
//	pages_test.go        what holds for every page
//	routes_test.go       the console's table of routes: none of its pages is left out
//	answers_test.go      the pages that only a form leads to, and a dead letter that is edited
//	empty_test.go        the pages of a database without jobs
//	places_test.go       the console below other paths and behind proxies
//	live_test.go         pages that follow the changes of jobs, and keys; each part also taken out
//	away_test.go         pages whose server restarts, whose login may do less, and whose machine sleeps
//	soon_test.go         how soon a change is seen
//	tail_test.go         the page Live, with ten thousand changes and with thousands a second
//	sessions_test.go     the same page for another login, with fewer capabilities, in another zone
//	login_test.go        signing in and out
//	defence_test.go      each check, with its defence switched off
//	budget_test.go       bytes and time of the first visit
//	screenshots_test.go  docs/operate/console/*.png
package browsertest
