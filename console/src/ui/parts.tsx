// Small parts that all screens share.
import { Fragment, useEffect, useId, useRef, useState, useSyncExternalStore, type ReactNode } from "react";
import { ApiError } from "../api/client";
import { ago, json, moment, visible } from "./text";

export type Tone = "good" | "warn" | "bad" | "accent" | "";

const GLYPHS: Record<Tone, string> = { good: "●", warn: "▲", bad: "■", accent: "◆", "": "○" };

/** A state as words with a shape and a colour. The shape tells it without the colour. */
export function Chip({ tone = "", children, title }: { tone?: Tone; children: ReactNode; title?: string }) {
  return (
    <span className={`chip ${tone}`} title={title}>
      <span className="glyph" aria-hidden="true">
        {GLYPHS[tone]}
      </span>
      <span className="clip">{children}</span>
    </span>
  );
}

const RISK_TONES: Record<string, Tone> = { safe: "good", moderate: "warn", dangerous: "bad" };

export function Risk({ level }: { level: string | null | undefined }) {
  if (!level) return <Chip>not known</Chip>;
  return <Chip tone={RISK_TONES[level] ?? ""}>{level}</Chip>;
}

/** Untrusted text, as one block that keeps its line breaks. */
export function Words({ children, className = "" }: { children: string | null | undefined; className?: string }) {
  return <span className={`anywhere ${className}`}>{visible(children ?? "")}</span>;
}

/** Names of principals. A narrow place breaks them before an `@` rather than within a word. */
export function Names({ children }: { children: string }) {
  return (
    <span className="anywhere">
      {visible(children)
        .split(/(?=@)/)
        .map((part, index) => (
          <Fragment key={index}>
            {index > 0 && <wbr />}
            {part}
          </Fragment>
        ))}
    </span>
  );
}

export function Code({ value, label }: { value: unknown; label: string }) {
  const text = typeof value === "string" ? visible(value) : json(value);
  return (
    <div className="list">
      <pre tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
    </div>
  );
}

export function CopyButton({ text, children = "Copy" }: { text: string; children?: ReactNode }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    window.setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" className="button quiet small" onClick={() => void copy()}>
      {isDone ? "Copied" : children}
    </button>
  );
}

// One timer for all times on the page.
let now = Date.now();
const watchers = new Set<() => void>();
let ticking: number | undefined;
function watchClock(watcher: () => void) {
  watchers.add(watcher);
  ticking ??= window.setInterval(() => {
    now = Date.now();
    for (const each of watchers) each();
  }, 1000);
  return () => {
    watchers.delete(watcher);
    if (watchers.size === 0) {
      window.clearInterval(ticking);
      ticking = undefined;
    }
  };
}
export const useNow = () => useSyncExternalStore(watchClock, () => now);

/** A moment as people say it, with the exact local time as its title. */
export function Time({ at }: { at: string | null | undefined }) {
  const current = useNow();
  if (!at) return <span className="soft">–</span>;
  const when = new Date(at);
  return (
    <time dateTime={at} title={moment(when)} className="nowrap">
      {ago(when.getTime(), current)}
    </time>
  );
}

export function Facts({ rows }: { rows: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {rows
        .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
        .map(([name, value]) => (
          <div key={name} style={{ display: "contents" }}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export function Problem({ error, retry }: { error: unknown; retry?: () => void }) {
  if (!error) return null;
  const text = error instanceof ApiError ? error.message : "The gateway cannot be reached. The console tries again.";
  return (
    <div className="note bad bar" role="alert">
      <span>{visible(text)}</span>
      {retry && (
        <button type="button" className="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <div className="empty" role="status">
      <span>Loading {what}…</span>
    </div>
  );
}

interface Reading {
  isPending: boolean;
  isFetching: boolean;
  isPlaceholderData: boolean;
  error: unknown;
}

const SLOW_READING_MS = 500;

/** Whether a list without rows is known to be empty now. A list that could not be read, or is read for the first time, is not. */
export function useIsEmpty(list: Reading): boolean {
  const [isSlow, setSlow] = useState(false);
  const { isFetching } = list;
  // A list is read again after each hint. That is seen only if it takes long, as the answer of before may be wrong by then.
  useEffect(() => {
    if (!isFetching) return;
    const timer = window.setTimeout(() => setSlow(true), SLOW_READING_MS);
    return () => {
      window.clearTimeout(timer);
      setSlow(false);
    };
  }, [isFetching]);
  return !(list.isPending || list.isPlaceholderData || list.error || (isFetching && isSlow));
}

/** What stands in place of the rows of a list that has none. Its error is shown above it. */
export function NoRows({ list, what, isMore = false, children }: { list: Reading; what: string; isMore?: boolean; children: ReactNode }) {
  const isEmpty = useIsEmpty(list);
  if (isEmpty && !isMore) return <Empty>{children}</Empty>;
  return list.error && !list.isFetching ? null : <Loading what={what} />;
}

export function Empty({ children }: { children: ReactNode }) {
  return <div className="empty">{children}</div>;
}

export function Progress({ done, total, label }: { done?: number | null; total?: number | null; label: string }) {
  const isKnown = typeof done === "number" && typeof total === "number" && total > 0;
  const share = isKnown ? Math.min(100, (100 * done) / total) : 0;
  return (
    <div
      className={isKnown ? "progress" : "progress unknown"}
      role="progressbar"
      aria-label={label}
      {...(isKnown ? { "aria-valuenow": Math.round(share), "aria-valuemin": 0, "aria-valuemax": 100 } : {})}
    >
      <i style={isKnown ? { width: `${share}%` } : undefined} />
    </div>
  );
}

/** Show a dialog with the focus on its `data-focus`. The returned function closes it and gives the focus back. */
export function showDialog(dialog: HTMLDialogElement | null) {
  const before = document.activeElement;
  if (dialog && !dialog.open) dialog.showModal();
  // React writes no `autofocus` into the page, so the browser would take the first element that can have the focus.
  dialog?.querySelector<HTMLElement>("[data-focus]")?.focus();
  return () => {
    dialog?.close();
    // React has removed the dialog by now, so the browser gives the focus to nobody.
    if (before instanceof HTMLElement && before.isConnected) before.focus();
  };
}

/** A modal dialog. The browser keeps the focus inside and closes it with Escape. */
export function Dialog({
  title,
  children,
  onClose,
  className = "",
}: {
  title: string;
  children: ReactNode;
  onClose: () => void;
  className?: string;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => showDialog(element.current), []);
  return (
    <dialog ref={element} aria-labelledby={id} className={className} onClose={onClose} onCancel={onClose}>
      <div className="dialog">
        <h2 id={id}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

/** Ask before an action. A dangerous one needs a word typed, so that no single key can do it. */
export function Confirm({
  title,
  children,
  action,
  typed,
  tone = "primary",
  onConfirm,
  onClose,
}: {
  title: string;
  children?: ReactNode;
  action: string;
  typed?: string;
  tone?: string;
  onConfirm: () => Promise<unknown>;
  onClose: () => void;
}) {
  const [text, setText] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const input = useId();
  const confirm = async () => {
    setBusy(true);
    setError(null);
    try {
      await onConfirm();
      onClose();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form
        className="dialog"
        style={{ padding: 0 }}
        onSubmit={(event) => {
          event.preventDefault();
          void confirm();
        }}
      >
        {children}
        {typed && (
          <div className="field">
            <label htmlFor={input}>
              Type <code>{visible(typed)}</code> to confirm
            </label>
            <input id={input} value={text} onChange={(event) => setText(event.target.value)} autoComplete="off" spellCheck={false} data-focus />
          </div>
        )}
        <Problem error={error} />
        <div className="bar">
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button className={`button ${tone}`} disabled={isBusy || (typed !== undefined && text.trim() !== typed)} data-focus={typed ? undefined : ""}>
            {isBusy ? "Working…" : action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function SearchBox({
  value,
  onChange,
  label,
  placeholder,
}: {
  value: string;
  onChange: (value: string) => void;
  label: string;
  placeholder?: string;
}) {
  const [text, setText] = useState(value);
  const latest = useRef(onChange);
  latest.current = onChange;
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = window.setTimeout(() => latest.current(text), 200);
    return () => window.clearTimeout(timer);
  }, [text, value]);
  return (
    <input
      type="search"
      data-filter
      aria-label={label}
      placeholder={placeholder ?? label}
      value={text}
      onChange={(event) => setText(event.target.value)}
    />
  );
}

export function Select<T extends string>({
  label,
  value,
  options,
  onChange,
}: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  return (
    <select aria-label={label} value={value} onChange={(event) => onChange(event.target.value as T)}>
      {options.map(([key, text]) => (
        <option key={key} value={key}>
          {text}
        </option>
      ))}
    </select>
  );
}
