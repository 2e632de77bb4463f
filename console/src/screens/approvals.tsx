// The approval requests: a list that can be answered by keyboard, and one request with all that an
// approver needs. The buttons come first and stay in view.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useEffect } from "react";
import { api, data, type Schemas } from "../api/client";
import { usePages } from "../api/pages";
import { at, useFilters, useGo } from "../navigate";
import { Chip, Empty, Loading, Problem, Risk, SearchBox, Select, Time, Words, type Tone } from "../ui/parts";
import { useIsPhone, VirtualList, type Column } from "../ui/list";
import { brief, visible } from "../ui/text";
import { ApprovalDetail } from "./approval";
import { NotificationSwitch } from "./notify";

type Approval = Schemas["ApprovalView"];

export const APPROVAL_TONES: Record<string, Tone> = {
  pending: "warn",
  deferred: "warn",
  approved: "good",
  consumed: "good",
  denied: "bad",
  expired: "",
  cancelled: "",
  withdrawn: "",
};

const STATES = [
  ["", "Open"],
  ["all", "All"],
  ["approved,consumed", "Approved"],
  ["denied", "Denied"],
  ["expired", "Expired"],
] as const;

/** The arguments of a call in one line. */
function argumentsOf(request: Approval): string {
  const given = request.about.arguments;
  if (typeof given !== "object" || given === null) return "";
  return brief(Object.entries(given).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" "), 120);
}

const COLUMNS: Column<Approval>[] = [
  { name: "Request", width: "minmax(10rem, 2fr)", cell: (row) => (row.tool ? <b className="mono">{visible(`${row.server}/${row.tool}`)}</b> : <Words>{row.summary}</Words>), onPhone: true },
  { name: "Risk", width: "7.5rem", cell: (row) => <Risk level={row.risk} />, onPhone: true },
  { name: "With", width: "minmax(8rem, 2fr)", cell: (row) => <span className="mono soft">{argumentsOf(row)}</span> },
  { name: "From", width: "minmax(7rem, 1fr)", cell: (row) => <Words>{row.requester}</Words> },
  { name: "Asked", width: "6.5rem", cell: (row) => <Time at={row.created_at} /> },
];
const NARROW = COLUMNS.slice(0, 2);
const CLOSED_COLUMNS: Column<Approval>[] = [
  COLUMNS[0]!,
  { name: "State", width: "7.5rem", cell: (row) => <Chip tone={APPROVAL_TONES[row.state] ?? ""}>{row.state}</Chip>, onPhone: true },
  ...COLUMNS.slice(2),
];

const approvalsOf = (page: Schemas["ApprovalPage"]) => page.approvals;
const keyOf = (row: Approval) => row.id;

export function Approvals() {
  const { id } = useParams({ strict: false }) as { id?: string };
  const [filters, change] = useFilters();
  const go = useGo();
  const isPhone = useIsPhone();
  const { state = "", search = "" } = filters;
  const { list, pages, rows, hasMore, readMore, isOld, setAtTop } = usePages({
    queryKey: ["approvals", "list", state, search],
    read: (cursor: string) => data(api.GET("/api/approvals", { params: { query: { state, text: search, cursor, limit: 100 } } })),
    first: "",
    next: (page) => page.next,
    rowsOf: approvalsOf,
    keepsRows: true,
  });
  const total = pages[0]?.total;
  const open = (row: Approval) => go(at.approval(row.id), { state, search });
  const next = () => {
    const place = rows.findIndex((each) => each.id === id);
    const other = rows[place + 1] ?? rows[place - 1];
    // Far down, the list does not follow the hints. The answered request must leave it.
    void list.refetch();
    if (other) open(other);
    else go("/approvals", { state, search });
  };
  // An empty page may have a next one: the reader may not see all requests.
  useEffect(() => {
    if (rows.length === 0) readMore();
  }, [rows.length, readMore]);
  const showsList = !(isPhone && id);
  return (
    <div className="screen">
      {showsList && (
        <>
          <div className="head">
            <h1>Approvals</h1>
            <div className="bar">
              <SearchBox label="Filter requests" value={search} onChange={(value) => change({ search: value })} />
              <Select label="State" value={state as never} options={STATES} onChange={(value) => change({ state: value })} />
              <NotificationSwitch />
            </div>
          </div>
          <Problem error={list.error} retry={() => void list.refetch()} />
        </>
      )}
      <div className={id && !isPhone ? "split approvals-split" : ""}>
        {id && <ApprovalDetail key={id} id={id} onDone={next} onBack={() => go("/approvals", { state, search })} />}
        {showsList &&
          (list.isPending ? (
            <Loading what="requests" />
          ) : rows.length === 0 ? (
            <Empty>
              <b>{state ? "No request fits." : "Nothing waits for you."}</b>
              {!state && <span>A call that needs a person appears here, on any node, without a reload.</span>}
            </Empty>
          ) : (
            <VirtualList
              label="Approval requests"
              rows={rows}
              columns={state ? CLOSED_COLUMNS : id ? NARROW : COLUMNS}
              keyOf={keyOf}
              onOpen={open}
              current={id}
              total={total}
              isMore={hasMore}
              onMore={readMore}
              isOld={isOld}
              onTop={setAtTop}
            />
          ))}
      </div>
    </div>
  );
}

/** The newest open requests, for the overview. */
export function NeedsYou() {
  const go = useGo();
  const list = useQuery({ queryKey: ["approvals", "newest"], queryFn: () => data(api.GET("/api/approvals", { params: { query: { limit: 5 } } })) });
  const rows = list.data?.approvals ?? [];
  return (
    <section className="card" aria-label="Needs you">
      <div className="head">
        <h2>Needs you</h2>
        {(list.data?.total ?? 0) > rows.length && (
          <button type="button" className="button quiet" onClick={() => go("/approvals")}>
            All {list.data?.total}
          </button>
        )}
      </div>
      <Problem error={list.error} />
      {rows.length === 0 && !list.isPending && <p className="soft">Nothing waits for an answer.</p>}
      <ul className="rowlist">
        {rows.map((each) => (
          <li key={each.id}>
            <a
              href={`/console${at.approval(each.id)}`}
              onClick={(event) => {
                event.preventDefault();
                go(at.approval(each.id));
              }}
            >
              {visible(each.summary)}
            </a>
            <Risk level={each.risk} />
            <span className="mono soft clip">{argumentsOf(each)}</span>
            <span className="soft small">
              <Time at={each.created_at} />
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
