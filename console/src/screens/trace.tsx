// One call or trace as a waterfall, in words, and as entries.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { api, data, type Schemas } from "../api/client";
import { Code, CopyButton, Loading, Problem, Words } from "../ui/parts";
import { DecidedBy, outcomeTone } from "../ui/outcomes";
import { duration, json, moment, visible } from "../ui/text";

export function Trace() {
  const { trace } = useParams({ strict: false }) as { trace: string };
  const found = useQuery({ queryKey: ["audit", "trace", trace], queryFn: () => data(api.GET("/api/audit/timeline/{name}", { params: { path: { name: trace } } })) });
  const spans = useQuery({ queryKey: ["audit", "spans", trace], queryFn: () => data(api.GET("/api/audit/traces/{trace}", { params: { path: { trace } } })), retry: false });
  if (found.isPending) return <Loading what="the call" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const story = found.data;
  const first = story.entries[0];
  // A call may be tried again in the same trace. The last attempt tells how it stands.
  const last = story.entries.findLast((entry) => entry.outcome !== null);
  return (
    <div className="screen">
      <div className="head top">
        <h1>
          <Words>{story.headline || "A call"}</Words>
        </h1>
        <CopyButton text={json(story.entries)}>Copy as JSON</CopyButton>
      </div>
      {first && <p className="soft">{moment(new Date(first.at))}</p>}
      {last?.decided_by && <DecidedBy decider={last.decided_by} principal={last.actor} />}
      {spans.data && <Waterfall spans={spans.data.spans} />}
      <section className="card" aria-label="In words">
        <h2>What happened</h2>
        <ol className="rowlist">
          {story.events.map((event, index) => (
            <li key={index}>
              <span className="number soft small" style={{ width: "5.5rem" }}>
                + {duration(event.after_ms)}
              </span>
              <span style={{ flex: 1, minWidth: "12rem" }}>
                {event.is_bad && <span className="c2" aria-hidden="true">■ </span>}
                <Words>{event.text}</Words>
                {event.more.map((more, place) => (
                  <span key={place} className="soft small" style={{ display: "block" }}>
                    <Words>{more}</Words>
                  </span>
                ))}
              </span>
            </li>
          ))}
        </ol>
        {story.unknown.length > 0 && <p className="note warn">Not recorded: {story.unknown.map(visible).join("; ")}</p>}
      </section>
      <section className="card" aria-label="Entries">
        <h2>Entries</h2>
        {story.entries.map((entry) => (
          <details key={`${entry.node} ${entry.seq}`}>
            <summary>
              {visible(entry.type)} <span className="soft small">{moment(new Date(entry.at))}</span>
            </summary>
            <Code label={`Entry ${entry.seq}`} value={entry} />
          </details>
        ))}
      </section>
    </div>
  );
}

type Span = Schemas["SpanView"];

function Waterfall({ spans }: { spans: Span[] }) {
  const parents = new Map(spans.map((each) => [each.id, each.parent]));
  const depth = (span: Span) => {
    let steps = 0;
    for (let id = span.parent; id && steps < 6; id = parents.get(id) ?? null) steps++;
    return steps;
  };
  const start = Math.min(...spans.map((each) => Date.parse(each.start)));
  const end = Math.max(1, ...spans.map((each) => Date.parse(each.start) - start + each.duration_ms));
  if (spans.length === 0) return null;
  return (
    <section className="card" aria-label="Waterfall">
      <h2>Waterfall</h2>
      <ol className="fall">
        {spans.map((span) => {
          const isBad = span.outcome ? outcomeTone(span.outcome) === "bad" : span.result === "FAILURE" || (span.result === "BLOCKED" && span.kind !== "approval");
          return (
            <li key={span.id}>
              <span className="clip" title={visible(span.name)} style={{ paddingLeft: `${depth(span) * 0.75}rem` }}>
                {visible(span.name)} <span className="soft small">{span.outcome ?? visible(span.result.toLowerCase())}</span>
              </span>
              <span className="track" aria-hidden="true">
                <i className={isBad ? "bad" : ""} style={{ left: `${Math.min(99, (100 * (Date.parse(span.start) - start)) / end)}%`, width: `${(100 * span.duration_ms) / end}%` }} />
              </span>
              <span className="number right small">{duration(span.duration_ms)}</span>
            </li>
          );
        })}
      </ol>
    </section>
  );
}
