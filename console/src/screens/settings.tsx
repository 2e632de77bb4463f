// The effective configuration with the source of each value, reload state, and health of the parts.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { Chip, Facts, Loading, Problem, SearchBox, Select, Time, Words } from "../ui/parts";
import { applyTheme, currentTheme, type Theme } from "../ui/theme";
import { duration, visible } from "../ui/text";

const THEMES = [
  ["system", "As the system"],
  ["light", "Light"],
  ["dark", "Dark"],
] as const;

export function Settings() {
  const [theme, setTheme] = useState<Theme>(currentTheme());
  return (
    <div className="screen">
      <div className="head">
        <h1>Settings</h1>
        <Select
          label="Theme of this browser"
          value={theme}
          options={THEMES}
          onChange={(value) => {
            setTheme(value);
            applyTheme(value);
          }}
        />
      </div>
      <div className="grid">
        <Health />
        <Reload />
      </div>
      <Configuration />
    </div>
  );
}

function Health() {
  const found = useQuery({ queryKey: ["nodes", "health"], queryFn: () => data(api.GET("/api/health")), refetchInterval: 10_000 });
  return (
    <section className="card" aria-label="Health">
      <h2>Health</h2>
      <Problem error={found.error} />
      <ul className="rowlist">
        {found.data?.checks.map((each) => (
          <li key={each.name}>
            <Chip tone={each.ok ? "good" : "bad"}>{each.ok ? "healthy" : "not healthy"}</Chip>
            <b>{visible(each.name)}</b>
            <span className="soft small">
              {each.latency_ms !== null && `${duration(each.latency_ms)} `}
              <Words>{each.text}</Words>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function useConfig() {
  return useQuery({ queryKey: ["config"], queryFn: () => data(api.GET("/api/config")), refetchInterval: 10_000 });
}

function Reload() {
  const found = useConfig();
  const reload = found.data?.reload;
  return (
    <section className="card" aria-label="Configuration file">
      <h2>Configuration file</h2>
      <Facts
        rows={[
          ["Files", found.data?.files.length ? <code className="anywhere">{visible(found.data.files.join(", "))}</code> : "none: defaults and environment"],
          ["Read", reload && <Time at={reload.read_at} />],
          ["Needs a restart", reload && reload.needs_restart.length > 0 && visible(reload.needs_restart.join(", "))],
          ["State", reload && <Chip tone={reload.error ? "bad" : "good"}>{reload.error ? "the last change was refused" : "in force"}</Chip>],
        ]}
      />
      {reload?.error && (
        <>
          <div className="note bad"><Words>{reload.error}</Words></div>
          <p>
            The configuration from before is in force. Comity reads the file again when it changes, and after <code>comity config trust</code>.
          </p>
        </>
      )}
    </section>
  );
}

function sourceOf({ source, file, line, variable }: Schemas["SettingView"]): string {
  if (file) return `${file.split("/").at(-1)}${line ? `:${line}` : ""}`;
  return variable ? `environment: ${variable}` : source;
}

function Configuration() {
  const found = useConfig();
  const [search, setSearch] = useState("");
  const [isChanged, setChanged] = useState<"all" | "set">("set");
  if (found.isPending) return <Loading what="the configuration" />;
  if (found.error || !found.data) return <Problem error={found.error} />;
  const rows = found.data.settings.filter((each) => (isChanged === "all" || each.source !== "default") && each.name.toLowerCase().includes(search.toLowerCase()));
  return (
    <section className="card" aria-label="Effective configuration">
      <div className="head">
        <h2>Effective configuration</h2>
        <SearchBox label="Filter settings" value={search} onChange={setSearch} />
        <Select label="Which" value={isChanged} options={[["set", "Set by you"], ["all", "All"]] as const} onChange={setChanged} />
      </div>
      <div className="scrolls" tabIndex={0} role="region" aria-label="Settings">
        <table className="stacked settings">
          <thead>
            <tr>
              <th>Setting</th>
              <th>Value</th>
              <th>Source</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((each) => (
              <tr key={each.name}>
                <td className="mono">{visible(each.name)}</td>
                <td className="mono"><Words>{typeof each.value === "string" ? each.value : JSON.stringify(each.value)}</Words></td>
                <td className="soft small"><Words>{sourceOf(each)}</Words></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length === 0 && <p className="soft">Every setting has its default.</p>}
    </section>
  );
}
