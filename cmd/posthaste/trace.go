package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"go.opentelemetry.io/otel/attribute"

	"github.com/posthaste-dev/posthaste/tracing"
)

// traceEnds limits how long a stopping process waits until its last spans are accepted.
const traceEnds = 3 * time.Second

// startTracing exports spans by OTLP, as OpenTelemetry's own environment variables direct, if they name an endpoint or
// the exporter and --trace is not off. It returns a function that ends it.
func (p *program) startTracing(ctx context.Context, mode string, log *slog.Logger) (stop func(), err error) {
	exporter := p.getenv("OTEL_TRACES_EXPORTER")
	endpoint := cmp.Or(p.getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), p.getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	disabled := strings.EqualFold(p.getenv("OTEL_SDK_DISABLED"), "true")
	if mode == "off" || disabled || exporter == "none" || exporter == "" && endpoint == "" {
		return func() {}, nil
	}
	if exporter != "" && exporter != "otlp" {
		return nil, usagef("OTEL_TRACES_EXPORTER is %q, want otlp or none", exporter)
	}
	var spans trace.SpanExporter
	protocol := cmp.Or(p.getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), p.getenv("OTEL_EXPORTER_OTLP_PROTOCOL"),
		"http/protobuf")
	switch protocol {
	case "http/protobuf":
		spans, err = otlptracehttp.New(ctx)
	case "grpc":
		spans, err = otlptracegrpc.New(ctx)
	default:
		return nil, usagef("OTEL_EXPORTER_OTLP_PROTOCOL is %q, want http/protobuf or grpc", protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "posthaste"),
			attribute.String("service.version", buildVersion())),
		resource.WithFromEnv()) // the last one counts
	if err != nil { // the rest is there, and spans that lack an attribute are no reason to run no jobs
		log.LogAttrs(ctx, slog.LevelWarn, "spans lack attributes of the resource: see OTEL_RESOURCE_ATTRIBUTES",
			slog.String("component", "tracing"), slog.Any("err", err))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.LogAttrs(ctx, slog.LevelWarn, "spans not exported", slog.String("component", "tracing"),
			slog.Any("err", err))
	}))
	provider := trace.NewTracerProvider(trace.WithBatcher(spans), trace.WithResource(about))
	remove, err := tracing.Install(tracing.Config{Provider: provider, Mode: tracing.Mode(mode)})
	if err != nil {
		return nil, err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "traces are exported", slog.String("component", "tracing"),
		slog.String("mode", mode), slog.String("protocol", protocol))
	return func() {
		remove()
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceEnds)
		defer cancel()
		if err := provider.Shutdown(bound); err != nil {
			log.LogAttrs(bound, slog.LevelWarn, "the last spans were not exported", slog.String("component", "tracing"),
				slog.Any("err", err))
		}
	}, nil
}
