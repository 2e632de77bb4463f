// What needs a person: open requests, definitions to review, and a refused configuration.
import { useQuery } from "@tanstack/react-query";
import { api, data } from "../api/client";
import { at, To, useGo } from "../navigate";
import { Chip, Loading, Problem, Risk, Time, useIsEmpty } from "../ui/parts";
import { count, visible } from "../ui/text";
import { argumentsOf } from "./approvals";
import { useServers } from "./servers";
import { useConfig } from "./settings";

const MAX_SERVERS = 5;

export function NeedsYou() {
  const go = useGo();
  const list = useQuery({ queryKey: ["approvals", "newest"], queryFn: () => data(api.GET("/api/approvals", { params: { query: { limit: 5 } } })) });
  const { list: serverList, rows } = useServers({});
  const servers = rows.filter((each) => each.quarantined > 0);
  const config = useConfig();
  const refusal = config.data?.reload.error;
  const requests = list.data?.approvals ?? [];
  // Quiet only if all of them were read: what could not be read may need a person.
  const areRead = [useIsEmpty(list), useIsEmpty(serverList), useIsEmpty(config)].every(Boolean);
  const isQuiet = requests.length === 0 && servers.length === 0 && !refusal;
  const failed = [list, serverList, config].filter((each) => each.error);
  return (
    <section className="card" aria-label="Needs you">
      <div className="head">
        <h2>Needs you</h2>
        {(list.data?.total ?? 0) > requests.length && (
          <button type="button" className="button quiet" onClick={() => go("/approvals")}>
            All {list.data?.total}
          </button>
        )}
      </div>
      <Problem error={failed[0]?.error} retry={() => failed.forEach((each) => void each.refetch())} />
      {isQuiet && areRead && <p className="soft">Nothing waits for an answer.</p>}
      {isQuiet && !areRead && failed.length === 0 && <Loading what="what waits" />}
      <ul className="rowlist">
        {refusal && (
          <li data-kind="configuration">
            <To path="/settings">A change of the configuration file was refused</To>
            <Chip tone="bad">not in force</Chip>
            <span className="soft small clip">{visible(refusal.split("\n", 1)[0]!)}</span>
          </li>
        )}
        {servers.slice(0, MAX_SERVERS).map((each) => (
          <li key={each.id} data-kind="definition">
            <To path={at.server(each.id)} search={{ tab: "review" }}>
              Review {count(each.quarantined)} {each.quarantined === 1 ? "definition" : "definitions"} of {visible(each.label || each.id)}
            </To>
            <Chip tone="warn">withheld</Chip>
            <span className="soft small">No client sees {each.quarantined === 1 ? "this tool" : "these tools"} before a person accepts the definition.</span>
          </li>
        ))}
        {servers.length > MAX_SERVERS && (
          <li>
            <To path="/servers">Definitions of {count(servers.length - MAX_SERVERS)} more servers</To>
          </li>
        )}
        {requests.map((each) => (
          <li key={each.id} data-kind="approval">
            <To path={at.approval(each.id)}>{visible(each.summary)}</To>
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
