// One tool: its description and schema, and a form that calls it through the pipeline.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { at, To, useFilters } from "../navigate";
import { defaults, SchemaFields, type Schema, type Values } from "../ui/form";
import { Chip, Code, Confirm, CopyButton, Loading, Problem, Progress, Risk, Words, type Tone } from "../ui/parts";
import { Tabs } from "../ui/tabs";
import { duration, json, visible } from "../ui/text";

type Call = Schemas["CallJobView"];

export function Tool() {
  const { name } = useParams({ strict: false }) as { name: string };
  const [filters, change] = useFilters();
  const found = useQuery({ queryKey: ["tools", "one", name], queryFn: () => data(api.GET("/api/tools/{name}", { params: { path: { name } } })) });
  if (found.isPending) return <Loading what="the tool" />;
  if (found.error || !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  const tool = found.data;
  const definition = tool.definition as { title?: string; description?: string; inputSchema?: Schema; outputSchema?: Schema; annotations?: object };
  return (
    <div className="screen">
      <div className="head">
        <h1 className="mono">{visible(tool.tool)}</h1>
        <Risk level={tool.risk} />
        <span className="soft">
          of <To path={at.server(tool.server)}>{visible(tool.server)}</To>
        </span>
      </div>
      <p><Words>{definition.description}</Words></p>
      <Tabs
        label="Tool"
        value={filters.tab ?? "call"}
        onChange={(tab) => change({ tab })}
        tabs={[
          { id: "call", name: "Call", content: () => <CallForm key={tool.name} name={tool.name} risk={tool.risk ?? ""} schema={definition.inputSchema ?? {}} /> },
          {
            id: "schema",
            name: "Definition",
            content: () => (
              <div className="card">
                <div className="head">
                  <h2>Definition as clients get it</h2>
                  <CopyButton text={json(tool.definition)} />
                </div>
                <Code label="Definition" value={tool.definition} />
              </div>
            ),
          },
        ]}
      />
    </div>
  );
}

const STATE_TONES: Record<string, Tone> = { done: "good", failed: "bad", cancelled: "", running: "accent", queued: "", waiting_for_approval: "warn" };
const OVER = new Set(["done", "failed", "cancelled"]);

function CallForm({ name, risk, schema }: { name: string; risk: string; schema: Schema }) {
  const [values, setValues] = useState<Values>(() => defaults(schema));
  const [call, setCall] = useState<Call | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isAsking, setAsking] = useState(false);
  const latest = call?.progress.at(-1);
  const isRunning = call !== null && !OVER.has(call.state);

  const start = async () => {
    setError(null);
    setCall(await data(api.POST("/api/calls", { body: { tool: name, arguments: values as Record<string, never> } })));
  };
  useEffect(() => {
    if (!isRunning) return;
    let isGone = false;
    const follow = async () => {
      try {
        const next = await data(api.GET("/api/calls/{id}", { params: { path: { id: call.id }, query: { wait: 10, after: call.version } } }));
        if (!isGone) setCall(next);
      } catch (problem) {
        if (!isGone) setError(problem);
      }
    };
    void follow();
    return () => {
      isGone = true;
    };
  }, [call, isRunning]);
  const cancel = async () => {
    if (call) setCall(await data(api.POST("/api/calls/{id}/cancel", { params: { path: { id: call.id } }, body: {} })));
  };
  const submit = () => (risk === "dangerous" ? setAsking(true) : void start().catch(setError));
  return (
    <div className="split">
      <form
        className="card"
        aria-label="Arguments"
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <h2>Arguments</h2>
        {Object.keys(schema.properties ?? {}).length === 0 && <p className="soft">This tool takes no arguments.</p>}
        <SchemaFields schema={schema} values={values} onChange={setValues} />
        <p className="small soft">The call has your grants, and passes the same checks, approvals and audit as any other.</p>
        <div className="bar">
          <button className="button primary" disabled={isRunning}>
            Call
          </button>
          <CopyButton text={`comity call ${name} '${JSON.stringify(values).replaceAll("'", "'\\''")}'`}>Copy as a command</CopyButton>
        </div>
        <Problem error={error} />
      </form>
      <section className="card" aria-label="Result" aria-busy={isRunning}>
        <div className="head">
          <h2>Result</h2>
          {call && <Chip tone={STATE_TONES[call.state] ?? ""}>{call.state.replaceAll("_", " ")}</Chip>}
        </div>
        {!call && <p className="soft">The result appears here.</p>}
        {isRunning && call && (
          <>
            <Progress label={`Call of ${visible(name)}`} done={latest?.progress} total={latest?.total} />
            <p className="small soft">
              {duration(call.elapsed_ms)} so far. <Words>{latest?.message}</Words>
            </p>
            {call.state === "waiting_for_approval" && call.approval && (
              <p>
                A person must approve this call: <To path={at.approval(call.approval)}>open the request</To>
              </p>
            )}
            <div className="bar">
              <button type="button" className="button bad" onClick={() => void cancel()}>
                Cancel the call
              </button>
            </div>
          </>
        )}
        {call && OVER.has(call.state) && (
          <>
            <p className="small soft">Took {duration(call.elapsed_ms)}.</p>
            {call.error && <div className="note bad"><Words>{call.error.message}</Words></div>}
            {call.result !== null && call.result !== undefined && <Code label="Result of the call" value={call.result} />}
            {call.trace && <To path={at.trace(call.trace)}>Open in the audit log</To>}
          </>
        )}
      </section>
      {isAsking && (
        <Confirm title={`Call ${visible(name)}?`} action="Call" tone="bad full" typed={name} onClose={() => setAsking(false)} onConfirm={start}>
          <p>This tool is dangerous: its effect may not be reversible.</p>
        </Confirm>
      )}
    </div>
  );
}
