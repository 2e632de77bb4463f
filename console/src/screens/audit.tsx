// The audit log: filters in the address, one row for each entry, and the state of its verification.
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { MAX_PAGES, usePages } from "../api/pages";
import { at, useFilters, useGo } from "../navigate";
import { useMayWrite } from "../session";
import { VirtualList, type Column } from "../ui/list";
import { Chip, Code, Dialog, Facts, NoRows, Problem, Progress, SearchBox, Select, Time, Words, type Tone } from "../ui/parts";
import { DecidedBy, OUTCOMES, OutcomeChip, type Outcome } from "../ui/outcomes";
import { count, moment, visible } from "../ui/text";

type Entry = Schemas["AuditEntryView"];

const RESULT_TONES: Record<string, Tone> = { SUCCESS: "good", FAILURE: "bad", BLOCKED: "bad", PENDING: "warn", UNKNOWN: "bad" };

/** The tool of an entry. A denied call has it only in its decision, because the caller must not learn it. */
const targetOf = ({ server, tool, decided_by: decided }: Entry) => [decided?.server || server, decided?.tool || tool].filter(Boolean).join("/");

/** The prefix of the event types of Comity. Without it, a phone shows what differs. */
const OWN_PREFIX = "dev.comity.";

const COLUMNS: Column<Entry>[] = [
  { name: "When", width: "6rem", cell: (row) => <Time at={row.at} />, onPhone: true },
  { name: "Event", width: "minmax(5rem, 1.3fr)", cell: (row) => <span title={visible(row.type)}>{visible(row.type.replace(OWN_PREFIX, ""))}</span>, onPhone: true },
  { name: "Principal", width: "minmax(7rem, 1fr)", cell: (row) => <Words>{row.actor}</Words> },
  { name: "Server and tool", width: "minmax(8rem, 1.4fr)", cell: (row) => <span className="mono">{visible(targetOf(row))}</span> },
  {
    name: "Outcome",
    width: "8.25rem",
    cell: (row) => (row.outcome ? <OutcomeChip outcome={row.outcome} decider={row.decided_by} /> : row.result ? <Chip tone={RESULT_TONES[row.result] ?? ""}>{row.result.toLowerCase()}</Chip> : null),
    onPhone: true,
  },
  { name: "Node", width: "6rem", cell: (row) => <span className="soft">{visible(row.node)}</span> },
];

const SPANS = [
  ["", "Any time"],
  ["1", "Last hour"],
  ["24", "Last day"],
  ["168", "Last week"],
  ["720", "Last 30 days"],
] as const;
const RESULTS = [["", "Any result"], ...["success", "failure", "blocked", "pending", "unknown"].map((each) => [each, each === "blocked" ? "blocked: not sent" : each] as const)] as const;

const OUTCOME_OPTIONS = [["", "Any outcome"], ...OUTCOMES] as const;

const entriesOf = (page: Schemas["AuditPage"]) => page.entries;
const keyOf = (row: Entry) => `${row.node} ${row.seq}`;

export function Audit() {
  const [filters, change] = useFilters();
  const [open, setOpen] = useState<Entry | null>(null);
  const { actor = "", tool = "", server = "", result = "", outcome = "", type = "", trace = "", hours = "" } = filters;
  const { list, pages, rows, hasMore, readMore, isCut, isOld, setAtTop } = usePages({
    queryKey: ["audit", "list", actor, tool, server, result, outcome, type, trace, hours],
    read: (cursor: string) => {
      const since = hours ? new Date(Date.now() - Number(hours) * 3_600_000).toISOString() : "";
      return data(api.GET("/api/audit", { params: { query: { actor, tool, server, result, outcome: (outcome || undefined) as Outcome | undefined, type, trace, since, cursor } } }));
    },
    first: "",
    next: (page) => page.next,
    rowsOf: entriesOf,
    maxPages: MAX_PAGES,
    keepsRows: true,
  });
  // A page of a search by outcome can end before its rows are full. A reader says whether to search further back.
  const searchedTo = hasMore ? pages.at(-1)?.searched_to : undefined;
  const searchFurther = searchedTo && (
    <button type="button" className="button" onClick={readMore} disabled={list.isFetchingNextPage}>
      {list.isFetchingNextPage ? "Searching…" : "Search older entries"}
    </button>
  );
  return (
    <div className="screen">
      <div className="head">
        <h1>Audit log</h1>
        <Verification />
      </div>
      <div className="bar" role="search">
        <SearchBox label="Principal" value={actor} onChange={(value) => change({ actor: value })} />
        <SearchBox label="Server" value={server} onChange={(value) => change({ server: value })} />
        <SearchBox label="Tool" value={tool} onChange={(value) => change({ tool: value })} />
        <SearchBox label="Trace" value={trace} onChange={(value) => change({ trace: value })} />
        <SearchBox label="Event type" value={type} onChange={(value) => change({ type: value })} />
        <Select label="Outcome" value={outcome as Outcome | ""} options={OUTCOME_OPTIONS} onChange={(value) => change({ outcome: value })} />
        <Select label="Result" value={result} options={RESULTS} onChange={(value) => change({ result: value })} />
        <Select label="Time" value={hours as never} options={SPANS} onChange={(value) => change({ hours: value })} />
      </div>
      <Problem error={list.error} retry={() => void list.refetch()} />
      {rows.length === 0 ? (
        <NoRows list={list} what="entries">
          {searchedTo ? (
            <span>
              No entry fits so far. The search reached the entries of <Time at={searchedTo} />.
            </span>
          ) : (
            "No entry fits these filters."
          )}
          {searchFurther}
        </NoRows>
      ) : (
        <VirtualList
          label="Audit entries"
          rows={rows}
          columns={COLUMNS}
          keyOf={keyOf}
          onOpen={setOpen}
          isMore={hasMore && !searchedTo}
          onMore={readMore}
          isOld={isOld}
          isCut={isCut}
          onTop={setAtTop}
          footer={
            <>
              {searchedTo && (
                <span>
                  Searched back to <Time at={searchedTo} />.
                </span>
              )}
              {searchFurther}
              <Export rows={rows} />
            </>
          }
        />
      )}
      {open && <EntryDialog entry={open} onClose={() => setOpen(null)} />}
    </div>
  );
}

function EntryDialog({ entry, onClose }: { entry: Entry; onClose: () => void }) {
  const go = useGo();
  const id = entry.trace || entry.call;
  return (
    <Dialog title={visible(entry.type)} onClose={onClose} className="wide">
      <Facts
        rows={[
          ["When", moment(new Date(entry.at))],
          ["Principal", entry.actor && <Words>{entry.actor}</Words>],
          ["Tool", entry.tool && <Words className="mono">{targetOf(entry)}</Words>],
          ["Outcome", entry.outcome ? <OutcomeChip key="outcome" outcome={entry.outcome} decider={entry.decided_by} /> : entry.result],
          ["Trace", entry.trace && <code>{visible(entry.trace)}</code>],
          ["Entry", `${visible(entry.node)} ${entry.seq}`],
          ["Hash", <code key="hash" className="anywhere">{entry.hash}</code>],
        ]}
      />
      {entry.decided_by && <DecidedBy decider={entry.decided_by} principal={entry.actor} />}
      <Code label="Details" value={entry.details} />
      <div className="bar">
        {id && (
          <button
            type="button"
            className="button primary"
            onClick={() => {
              onClose();
              go(at.trace(id));
            }}
          >
            Show the whole call
          </button>
        )}
        <button type="button" className="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

/** The entries in view as a file. The signed export of the whole log is `comity audit export`. */
function Export({ rows }: { rows: Entry[] }) {
  const save = () => {
    const lines = rows.map((each) => JSON.stringify(each)).join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines], { type: "application/jsonl" }));
    link.download = "audit.jsonl";
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return (
    <button type="button" className="button" onClick={save}>
      Save {count(rows.length)} entries
    </button>
  );
}

function Verification() {
  const mayWrite = useMayWrite();
  const queries = useQueryClient();
  const found = useQuery({
    queryKey: ["audit", "verification"],
    queryFn: () => data(api.GET("/api/audit/verification")),
    refetchInterval: (query) => (query.state.data?.state === "running" ? 1_000 : false),
  });
  const start = useMutation({
    mutationFn: () => data(api.POST("/api/audit/verification", { body: {} })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["audit", "verification"] }),
  });
  const cancel = useMutation({
    mutationFn: () => data(api.POST("/api/audit/verification/cancel", { body: {} })),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["audit", "verification"] }),
  });
  const state = found.data;
  if (!state) return null;
  const tones: Record<string, [Tone, string]> = {
    whole: ["good", "intact"],
    unsigned: ["warn", "intact, not signed"],
    defective: ["bad", "broken"],
    running: ["accent", "verifying"],
    cancelled: ["", "cancelled"],
    failed: ["warn", "could not be verified"],
    never: ["", "not verified yet"],
  };
  const [tone, words] = tones[state.state] ?? ["", state.state];
  return (
    <div className="bar">
      <Chip tone={tone}>Chain: {words}</Chip>
      {state.state === "running" ? (
        <>
          <div style={{ width: "6rem" }}>
            <Progress label="Verification" />
          </div>
          <span className="small soft">{count(state.entries)} entries so far</span>
          {mayWrite && (
            <button type="button" className="button" onClick={() => cancel.mutate()}>
              Cancel
            </button>
          )}
        </>
      ) : (
        <>
          {state.ended_at && (
            <span className="small soft">
              {count(state.entries)} entries, <Time at={state.ended_at} />
            </span>
          )}
          {mayWrite && (
            <button type="button" className="button" onClick={() => start.mutate()} disabled={start.isPending}>
              Verify now
            </button>
          )}
        </>
      )}
      <Problem error={start.error ?? cancel.error} />
      {state.error && <span className="note warn"><Words>{state.error}</Words></span>}
      {state.findings.slice(0, 5).map((each) => (
        <span key={`${each.node} ${each.seq}`} className="note bad">
          <Words>{`${each.node} ${each.seq}: ${each.text}`}</Words>
        </span>
      ))}
    </div>
  );
}
