package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/posthaste-dev/posthaste/access"
)

// route is one row of the API: adding a route takes this row and a method of server.
type route struct {
	method, path string
	needs        access.Capability // callers without it get a 403
	everything   bool              // acts on what all tenants share: only for principals of all tenants
	summary      string
	add          func(*server, huma.API, huma.Operation)
}

// entry is a route in use.
type entry struct {
	route
	also  access.Capability // a second required capability; "" for most
	quick bool              // its handler takes turns for connections itself, if it needs any
	shape *shape            // of its body
}

// bodyShape returns the members that the JSON body of a route may have.
func bodyShape(spec *huma.OpenAPI, r route) *shape {
	if op := spec.Paths[r.path].Post; op != nil && r.method == http.MethodPost && op.RequestBody != nil {
		if content := op.RequestBody.Content["application/json"]; content != nil {
			return shapeOf(spec.Components.Schemas, content.Schema)
		}
	}
	return nil
}

// routes lists every route and the capability that it requires. Nothing else is served, except the description and its
// explorer, which need no token.
var routes = []route{
	{"POST", "/jobs", access.JobsEnqueue, false, "Enqueue a job", quick(accepted((*server).enqueue))},
	{
		"POST", "/jobs/batch", access.JobsEnqueue, false, "Enqueue up to 1 000 jobs, all or none",
		quick(accepted((*server).enqueueBatch)),
	},
	{"GET", "/jobs", access.JobsRead, false, "List jobs, newest first", ok((*server).listJobs)},
	{"GET", "/jobs/{id}", access.JobsRead, false, "Get a job", quick(ok((*server).getJob))},
	{"GET", "/jobs/{id}/result", access.JobsRead, false, "Get the result of a job", ok((*server).getResult)},
	{"GET", "/jobs/{id}/progress", access.JobsRead, false, "Get the progress of a job", ok((*server).getProgress)},
	{
		"GET", "/jobs/{id}/logs", access.JobsRead, false, "List the log lines of a job, oldest first",
		ok((*server).listLogs),
	},
	{
		"GET", "/jobs/{id}/steps", access.AdminRead, false, "List the finished steps of a job, oldest first",
		ok((*server).listSteps),
	},
	{
		"GET", "/jobs/{id}/attempts", access.AdminRead, false, "List the failed attempts of a job, newest first",
		ok((*server).listAttempts),
	},
	{"GET", "/jobs/{id}/why", access.AdminRead, false, "Explain why a job does not run", ok((*server).whyJob)},
	{
		"POST", "/jobs/{id}/cancel", access.JobsCancel, false, "Cancel a waiting job, or ask a running one to stop",
		okOrAccepted("The job is running and was asked to stop", (*server).cancelJob),
	},
	{"POST", "/jobs/{id}/release", access.AdminMutate, false, "Release a held job", ok((*server).releaseJob)},
	{
		"POST", "/jobs/{id}/retry", access.AdminMutate, false,
		"Retry a dead letter with all its attempts, or run a waiting job at once", ok((*server).retryJob),
	},
	{"POST", "/jobs/{id}/dismiss", access.AdminMutate, false, "Dismiss a dead letter", ok((*server).dismissJob)},
	{"POST", "/jobs/cancel", access.JobsCancel, false, "Cancel many jobs", ok((*server).cancelJobs)},
	{"POST", "/jobs/release", access.AdminMutate, false, "Release many held jobs", ok((*server).releaseJobs)},
	{"POST", "/jobs/retry", access.AdminMutate, false, "Retry many jobs", ok((*server).retryJobs)},
	{"POST", "/jobs/dismiss", access.AdminMutate, false, "Dismiss many dead letters", ok((*server).dismissJobs)},
	{
		"POST", "/jobs/replay", access.AdminMutate, false, "Enqueue jobs of the history again",
		ok((*server).replayHistory),
	},
	{"GET", "/dead-letters", access.AdminRead, false, "List dead letters, newest first", ok((*server).listDeadLetters)},
	{
		"GET", "/dead-letters/groups", access.AdminRead, false, "Group dead letters by error, and count them",
		ok((*server).groupDeadLetters),
	},
	{
		"POST", "/dead-letters/replay", access.AdminMutate, false, "Replay dead letters, up to 1 000 per request",
		ok((*server).replayDeadLetters),
	},
	{
		"POST", "/dead-letters/{id}/replay", access.AdminMutate, false, "Replay a dead letter with another payload",
		alsoNeeding(access.PayloadRead, ok((*server).replayDeadLetter)),
	},
	{
		"POST", "/dead-letters/dismiss", access.AdminMutate, false, "Dismiss dead letters, up to 1 000 per request",
		ok((*server).dismissDeadLetters),
	},
	{
		"POST", "/operations", access.AdminMutate, false, "Start an act on many jobs, which continues without the client",
		accepted((*server).startOperation),
	},
	{
		"POST", "/operations/preview", access.AdminMutate, false, "Count the jobs that an operation would act on",
		ok((*server).previewOperation),
	},
	{"GET", "/operations", access.AdminRead, false, "List operations, newest first", ok((*server).listOperations)},
	{"GET", "/operations/{operation}", access.AdminRead, false, "Get an operation", ok((*server).getOperation)},
	{
		"POST", "/operations/{operation}/stop", access.AdminMutate, false, "Stop an operation",
		ok((*server).stopOperation),
	},
	{
		"POST", "/operations/{operation}/resume", access.AdminMutate, false, "Resume an operation",
		ok((*server).resumeOperation),
	},
	{"GET", "/keys", access.AdminRead, false, "List blocked and parked keys", ok((*server).listKeys)},
	{"GET", "/keys/{queue}/{key}", access.AdminRead, false, "Get a key", ok((*server).getKey)},
	{
		"POST", "/keys/{queue}/{key}/unblock", access.AdminMutate, false,
		"Unblock a key that is parked or blocked by a dead letter", ok((*server).unblockKey),
	},
	{"GET", "/schedules", access.AdminRead, false, "List schedules by name", ok((*server).listSchedules)},
	{"POST", "/schedules", access.AdminMutate, false, "Create a schedule", ok((*server).createSchedule)},
	{
		"POST", "/schedules/{name}/change", access.AdminMutate, false, "Change a schedule that no program declares",
		ok((*server).changeSchedule),
	},
	{"POST", "/schedules/{name}/pause", access.AdminMutate, false, "Pause a schedule", ok((*server).pauseSchedule)},
	{
		"POST", "/schedules/{name}/resume", access.AdminMutate, false, "Resume a schedule at its next tick",
		ok((*server).resumeSchedule),
	},
	{"POST", "/schedules/{name}/run", access.AdminMutate, false, "Run a schedule now", accepted((*server).runSchedule)},
	{
		"POST", "/schedules/{name}/delete", access.AdminMutate, false,
		"Delete a schedule; a program that declares it creates it again when it starts", ok((*server).deleteSchedule),
	},
	{"GET", "/workers", access.AdminRead, true, "List dispatchers by name", ok((*server).listWorkers)},
	{"GET", "/audit", access.AdminRead, false, "List the audit log, newest first", ok((*server).listAudit)},
	{
		"GET", "/queues", access.AdminRead, false, "List queues with the number of their open jobs",
		ok((*server).listQueues),
	},
	{"POST", "/queues/{queue}/pause", access.AdminMutate, true, "Pause a queue", ok((*server).pauseQueue)},
	{"POST", "/queues/{queue}/resume", access.AdminMutate, true, "Resume a queue", ok((*server).resumeQueue)},
	{
		"POST", "/queues/{queue}/limits", access.AdminMutate, true,
		"Set the limits of a queue: how many jobs run at once, and how many start in an interval",
		ok((*server).limitQueue),
	},
	{
		"GET", "/sinks", access.AdminRead, true, "List sinks, with their positions in the log of events",
		ok((*server).listSinks),
	},
	{"GET", "/sinks/{sink}", access.AdminRead, true, "Get a sink", ok((*server).getSink)},
	{
		"POST", "/sinks/{sink}/pause", access.AdminMutate, true, "Pause a sink: publish nothing to it",
		ok((*server).pauseSink),
	},
	{"POST", "/sinks/{sink}/resume", access.AdminMutate, true, "Resume a sink", ok((*server).resumeSink)},
	{
		"POST", "/sinks/{sink}/skip", access.AdminMutate, true,
		"Skip an event that is waiting for a sink, such as one at which it is stuck", ok((*server).skipEvent),
	},
	{
		"GET", "/sinks/{sink}/held", access.AdminRead, true,
		"List the messages that a sink has refused, and the messages of the same key behind them",
		ok((*server).listHeld),
	},
	{
		"POST", "/sinks/{sink}/replays", access.AdminMutate, false, "Publish past events to a sink again",
		okOrAccepted("The replay has started", (*server).startReplay),
	},
	{
		"GET", "/sinks/{sink}/replays", access.AdminRead, false, "List the replays of a sink, newest first",
		ok((*server).listReplays),
	},
	{
		"POST", "/sinks/{sink}/replays/{replay}/stop", access.AdminMutate, false, "Stop a replay",
		ok((*server).stopReplay),
	},
	{
		"GET", "/bridges", access.AdminRead, true, "List bridges, which turn messages of brokers into jobs",
		ok((*server).listBridges),
	},
	{"GET", "/problems", access.AdminRead, false, "List current problems, the worst first", ok((*server).listProblems)},
	{"GET", "/overview", access.AdminRead, false, "Get the backlog and the throughput", ok((*server).getOverview)},
	{"GET", "/series", access.AdminRead, false, "Get measurements over time", ok((*server).getSeries)},
	{
		"GET", "/doctor", access.AdminRead, true, "Check the installation, at most once a minute",
		ok((*server).getDoctor),
	},
	{"GET", "/me", access.JobsRead, false, "Get the capabilities of the token", quick(ok((*server).getMe))},
	{"GET", "/stats", access.AdminRead, false, "Count open jobs by status", ok((*server).getStats)},
	{
		"GET", "/kinds", access.JobsEnqueue, false, "List the kinds whose payloads are checked, with their schemas",
		quick(ok((*server).listKinds)),
	},
	{"GET", "/changes", access.AdminStream, false, "Stream the changes of jobs", streaming((*server).streamChanges)},
	{
		"GET", "/jobs/{id}/changes", access.JobsRead, false, "Stream the changes of a job until it has closed",
		streaming((*server).streamJobChanges),
	},
}

// ok registers a handler that answers 200, accepted one that answers 202.
func ok[I, O any](handle func(*server, context.Context, *I) (*O, error)) func(*server, huma.API, huma.Operation) {
	return answering(http.StatusOK, handle)
}

func accepted[I, O any](handle func(*server, context.Context, *I) (*O, error)) func(*server, huma.API, huma.Operation) {
	return answering(http.StatusAccepted, handle)
}

// alsoNeeding adds a second required capability to a route.
func alsoNeeding(second access.Capability, add func(*server, huma.API, huma.Operation)) func(*server, huma.API,
	huma.Operation) {
	return func(s *server, to huma.API, op huma.Operation) {
		op.Metadata["route"].(*entry).also = second
		op.Description += " And `" + string(second) + "`."
		add(s, to, op)
	}
}

// quick marks a route whose handler waits for no connection of Pool, or takes its turn itself.
func quick(add func(*server, huma.API, huma.Operation)) func(*server, huma.API, huma.Operation) {
	return func(s *server, to huma.API, op huma.Operation) {
		op.Metadata["route"].(*entry).quick = true
		add(s, to, op)
	}
}

// okOrAccepted registers a handler whose answers have a Status, 200 or 202.
func okOrAccepted[I, O any](when202 string, handle func(*server, context.Context, *I) (*O, error)) func(*server,
	huma.API, huma.Operation) {
	register := ok(handle)
	return func(s *server, to huma.API, op huma.Operation) {
		op.Responses = map[string]*huma.Response{}
		register(s, to, op)
		asked := *op.Responses["200"]
		asked.Description, asked.Headers = when202, nil
		op.Responses["202"] = &asked
	}
}

func answering[I, O any](status int, handle func(*server, context.Context, *I) (*O, error)) func(*server, huma.API,
	huma.Operation) {
	return func(s *server, to huma.API, op huma.Operation) {
		op.DefaultStatus = status
		huma.Register(to, op, func(ctx context.Context, in *I) (*O, error) {
			leave := func() {}
			if !op.Metadata["route"].(*entry).quick {
				var err error
				if leave, err = s.statements.take(ctx); err != nil {
					return nil, s.explain(ctx, err).of(&op)
				}
				if op.Method == http.MethodPost {
					defer s.watch.LetterGroups.Outdate() // an act may have changed them
				}
			}
			defer leave()
			out, err := handle(s, ctx, in)
			if err != nil {
				return nil, s.explain(ctx, err).of(&op)
			}
			return out, nil
		})
	}
}

// register adds every route to the mux, and the description and its explorer. It refuses a route without a capability.
func (s *server) register(mux *http.ServeMux, table []route) (*huma.OpenAPI, error) {
	described := huma.NewAPI(humaConfig(), humago.NewAdapter(mux, ""))
	for _, r := range table {
		if r.needs == "" {
			return nil, fmt.Errorf("route %s %s needs no capability", r.method, r.path)
		}
		known := &entry{route: r}
		op := huma.Operation{
			OperationID: operationID(r), Method: r.method, Path: r.path, Summary: r.summary, Tags: []string{tagOf(r)},
			Description: "Requires the capability `" + string(r.needs) + "`" +
				map[bool]string{true: ", of all tenants"}[r.everything] + ".",
			Security:     []map[string][]string{{"bearer": {}}},
			MaxBodyBytes: -1, BodyReadTimeout: -1, // huma sees it only after it is read and checked
			Metadata:                     map[string]any{"route": known},
			Middlewares:                  huma.Middlewares{s.enter},
			RejectUnknownQueryParameters: true,
		}
		r.add(s, described, op)
		known.shape = bodyShape(described.OpenAPI(), r)
	}
	registry := described.OpenAPI().Components.Schemas
	s.newJob.registry, s.newJob.schema = registry, registry.Schema(reflect.TypeFor[NewJob](), true, "NewJob")
	s.newJob.shape = shapeOf(registry, s.newJob.schema)
	document(described.OpenAPI())
	// The text is made for the first request rather than at each start: it takes longer than all routes together.
	text := sync.OnceValues(func() ([]byte, error) { return describe(described.OpenAPI()) })
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		described, err := text()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(described) // the client went away
	})
	serveExplorer(mux)
	return described.OpenAPI(), nil
}

// tags are the groups of the operations, in the order of the description.
var tags = []*huma.Tag{
	{Name: "jobs", Description: "Enqueue jobs, read them, act on them"},
	{Name: "dead-letters", Description: "Jobs that failed permanently and wait for a decision"},
	{Name: "operations", Description: "Acts on many jobs, which continue without the client"},
	{Name: "changes", Description: "Server-sent events of the changes of jobs"},
	{Name: "keys", Description: "Keys, which order jobs or limit how many run at once"},
	{Name: "queues", Description: "Pause and limit queues, count their jobs"},
	{Name: "schedules", Description: "Schedules, which enqueue jobs by the clock"},
	{Name: "sinks", Description: "Brokers that events are published to"},
	{Name: "bridges", Description: "Brokers whose messages become jobs"},
	{Name: "workers", Description: "Processes that run jobs"},
	{Name: "kinds", Description: "Kinds of jobs whose payloads are checked"},
	{Name: "stats", Description: "Numbers of jobs"},
	{Name: "problems", Description: "Current problems"},
	{Name: "overview", Description: "Backlog and throughput"},
	{Name: "series", Description: "Measurements over time"},
	{Name: "doctor", Description: "The installation: schema, server, wake-ups, vacuum, partitions"},
	{Name: "me", Description: "Capabilities of the token"},
	{Name: "audit", Description: "Acts of operators, with reasons"},
}

// tagOf returns the first segment of a path, except for the streams.
func tagOf(r route) string {
	if strings.HasSuffix(r.path, "/changes") {
		return "changes"
	}
	tag, _, _ := strings.Cut(strings.TrimPrefix(r.path, "/"), "/")
	return tag
}

// operationID returns an id like get-jobs-id-result.
func operationID(r route) string {
	words := strings.FieldsFunc(r.path, func(c rune) bool { return strings.ContainsRune("/{}", c) })
	return strings.ToLower(r.method) + "-" + strings.Join(words, "-")
}

var jsonFormat = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshal}

// unmarshal decodes a body for huma: once into an any, to validate it against its schema, and once into the struct. A
// payload may be anything, and is left out of the any, in which a megabyte of small numbers takes thirty. Values that
// cannot be decoded have been refused before, with their place, see form.
func unmarshal(data []byte, v any) error {
	target, isAny := v.(*any)
	var members map[string]json.RawMessage
	if !isAny || json.Unmarshal(data, &members) != nil || members == nil {
		if json.Unmarshal(data, v) != nil {
			return errUnreadable
		}
		return nil
	}
	object := map[string]any{}
	for name, text := range members {
		if name == "payload" {
			object[name] = nil
			continue
		}
		var member any
		if json.Unmarshal(text, &member) != nil {
			return errUnreadable
		}
		object[name] = member
	}
	*target = object
	return nil
}

// errUnreadable is worded for clients, whereas encoding/json names Go types.
var errUnreadable = errors.New("cannot be read as what the description of the API says")

func humaConfig() huma.Config {
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Posthaste", Version: "1",
				Description: "Enqueue jobs, read them and act on them over HTTP. Dispatchers run the jobs.",
			},
			Tags: tags,
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer"}},
			},
		},
		Formats:       map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat},
		DefaultFormat: "application/json",
		Transformers: []huma.Transformer{func(ctx huma.Context, _ string, v any) (any, error) {
			if e, ok := v.(*huma.ErrorModel); ok {
				v = fromHuma(e)
			}
			if p, ok := v.(*Problem); ok {
				url := ctx.URL()
				p.Instance, p.RequestID = url.EscapedPath(), requestID(ctx.Context())
			}
			return v, nil
		}},
	}
}

// document describes the problems that the API answers, in place of huma's errors.
func document(spec *huma.OpenAPI) {
	schema := spec.Components.Schemas.Schema(problemType, true, "Problem")
	for _, c := range problemCodes {
		kind := spec.Components.Schemas.Map()["Problem"].Properties["code"]
		kind.Enum = append(kind.Enum, c.name)
	}
	delete(spec.Components.Schemas.Map(), "ErrorModel")
	delete(spec.Components.Schemas.Map(), "ErrorDetail")
	for _, item := range spec.Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post} {
			if op == nil {
				continue
			}
			for status := range op.Responses {
				if status != "200" && status != "202" && status != "204" {
					delete(op.Responses, status)
				}
			}
			op.Responses["default"] = &huma.Response{
				Description: "A problem",
				Headers: map[string]*huma.Param{"Retry-After": {
					Schema:      &huma.Schema{Type: huma.TypeInteger},
					Description: "Seconds until a repeat makes sense",
				}},
				Content: map[string]*huma.MediaType{problemJSON: {Schema: schema}},
			}
			for _, response := range op.Responses {
				if response.Headers == nil {
					response.Headers = map[string]*huma.Param{}
				}
				response.Headers["X-Request-Id"] = &huma.Param{
					Schema:      &huma.Schema{Type: huma.TypeString},
					Description: "The request's own, or one that the server made",
				}
			}
		}
	}
}

// describe returns the description as text that is the same in every run.
func describe(spec *huma.OpenAPI) ([]byte, error) {
	compact, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, compact, "", "  "); err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	text.WriteByte('\n')
	return text.Bytes(), nil
}
