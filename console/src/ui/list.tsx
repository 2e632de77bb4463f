// A list of any length: only the rows in view are in the page, and more are read at its end.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState, type KeyboardEvent, type ReactNode } from "react";

export interface Column<T> {
  name: string;
  width: string;
  cell: (row: T) => ReactNode;
  onPhone?: boolean;
}

const ROW_HEIGHT = 44;

export function VirtualList<T>({
  label,
  rows,
  columns,
  keyOf,
  onOpen,
  current,
  total,
  isMore = false,
  onMore,
  height = "min(62vh, 44rem)",
  footer,
}: {
  label: string;
  rows: T[];
  columns: Column<T>[];
  keyOf: (row: T) => string;
  onOpen?: (row: T) => void;
  current?: string;
  total?: number;
  isMore?: boolean;
  onMore?: () => void;
  height?: string;
  footer?: ReactNode;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [focused, setFocused] = useState(0);
  const isPhone = useIsPhone();
  const shown = isPhone ? columns.filter((each) => each.onPhone) : columns;
  const template = shown.map((each) => each.width).join(" ");
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 8,
  });
  const items = virtual.getVirtualItems();
  const last = items[items.length - 1]?.index ?? -1;
  useEffect(() => {
    if (isMore && last >= rows.length - 20) onMore?.();
  }, [isMore, last, rows.length, onMore]);

  const move = (to: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    setFocused(next);
    virtual.scrollToIndex(next);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>(`[data-index="${next}"]`)?.focus());
  };
  const onKeyDown = (event: KeyboardEvent, index: number) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? ROW_HEIGHT) / ROW_HEIGHT) - 1);
    const steps: Record<string, number> = {
      ArrowDown: index + 1,
      j: index + 1,
      ArrowUp: index - 1,
      k: index - 1,
      PageDown: index + page,
      PageUp: index - page,
      Home: 0,
      End: rows.length - 1,
    };
    const to = steps[event.key];
    if (to !== undefined) move(to);
    else if (event.key === "Enter" || event.key === " ") onOpen?.(rows[index]!);
    else return;
    event.preventDefault();
  };
  const isIn = focused < rows.length ? focused : 0;
  const bounded = Math.min(rows.length * ROW_HEIGHT, 1e7);
  return (
    <div className="card flush">
      <div role="grid" aria-label={label} aria-rowcount={(total ?? rows.length) + 1}>
      <div className="vlist-head" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template }}>
        {shown.map((each) => (
          <div key={each.name} role="columnheader" className="clip">
            {each.name}
          </div>
        ))}
      </div>
      <div ref={box} className="vlist" role="rowgroup" style={{ height: `min(${Math.max(bounded, ROW_HEIGHT)}px, ${height})` }}>
        <div className="vspace" role="presentation" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const row = rows[item.index]!;
            return (
              <div
                // A row is its place. Rows that are added above it do not take the focus from it.
                key={item.index}
                role="row"
                aria-rowindex={item.index + 2}
                data-index={item.index}
                tabIndex={item.index === isIn ? 0 : -1}
                className={current === keyOf(row) ? "vrow current" : "vrow"}
                style={{ gridTemplateColumns: template, height: ROW_HEIGHT, transform: `translateY(${item.start}px)` }}
                onClick={() => onOpen?.(row)}
                onFocus={() => setFocused(item.index)}
                onKeyDown={(event) => onKeyDown(event, item.index)}
              >
                {shown.map((each) => (
                  <div key={each.name} role="gridcell">
                    {each.cell(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      </div>
      {(footer ?? (total !== undefined || isMore)) && (
        <div className="vfoot">
          <span>
            {rows.length.toLocaleString("en")} shown{total !== undefined && ` of ${total.toLocaleString("en")}`}
            {isMore && ", more follow"}
          </span>
          {footer}
        </div>
      )}
    </div>
  );
}

const phone = window.matchMedia("(max-width: 48rem)");
export function useIsPhone(): boolean {
  const [is, set] = useState(phone.matches);
  useEffect(() => {
    const look = () => set(phone.matches);
    phone.addEventListener("change", look);
    return () => phone.removeEventListener("change", look);
  }, []);
  return is;
}
