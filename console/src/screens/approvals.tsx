// The approval requests: a list that can be answered by keyboard, and one request with all that an
// approver needs. The buttons come first and stay in view.
import { useParams } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { api, data, type Schemas } from "../api/client";
import { usePages } from "../api/pages";
import { at, useFilters, useGo } from "../navigate";
import { Chip, NoRows, Problem, Risk, SearchBox, Select, Time, Words } from "../ui/parts";
import { useIsPhone, VirtualList, type Column } from "../ui/list";
import { brief, visible } from "../ui/text";
import { ApprovalDetail } from "./approval";
import { APPROVAL_TONES, approvalWord } from "./approval-tones";
import { NotificationSwitch } from "./notify";

type Approval = Schemas["ApprovalView"];

const STATES = [
  ["", "Open"],
  ["all", "All"],
  ["approved,consumed", "Approved"],
  ["denied", "Denied"],
  ["expired", "Expired"],
] as const;

/** The arguments of a call in one line. */
export function argumentsOf(request: Approval): string {
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
  { name: "State", width: "7.5rem", cell: (row) => <Chip tone={APPROVAL_TONES[row.state] ?? ""}>{approvalWord(row.state)}</Chip>, onPhone: true },
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
  // An answered request leaves the list of open ones. The one that took its place comes next.
  const place = useRef(0);
  const here = rows.findIndex((each) => each.id === id);
  if (here >= 0) place.current = here;
  const other = here >= 0 ? (rows[here + 1] ?? rows[here - 1]) : (rows[place.current] ?? rows[place.current - 1]);
  // Far down, the list does not follow the hints, so it is read again after an answer.
  const onAnswered = () => void list.refetch();
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
        {id && <ApprovalDetail key={id} id={id} onAnswered={onAnswered} onNext={other && (() => open(other))} onBack={() => go("/approvals", { state, search })} />}
        {showsList &&
          (rows.length === 0 ? (
            <NoRows list={list} what="requests" isMore={hasMore}>
              <b>{state || search ? "No request fits." : "Nothing waits for you."}</b>
              {!state && !search && <span>A call that needs a person appears here, on any node, without a reload.</span>}
            </NoRows>
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
