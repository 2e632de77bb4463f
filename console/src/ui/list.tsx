// A list of any length: only the rows in view are in the page, and more are read at its end.
import { defaultRangeExtractor, useVirtualizer, type Range } from "@tanstack/react-virtual";
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";

export interface Column<T> {
  name: string;
  width: string;
  cell: (row: T) => ReactNode;
  onPhone?: boolean;
}

const ROW_HEIGHT = 44;
/** More rows than one screen has. Above this row, a reader sees what comes in at the top. */
const ROWS_AT_TOP = 50;
const ROWS_LEFT_FOR_MORE = 20;

interface RowProps<T> {
  row: T;
  index: number;
  columns: Column<T>[];
  template: string;
  isTabStop: boolean;
  isCurrent: boolean;
  onOpen: (index: number) => void;
  onFocus: (index: number) => void;
  onKeyDown: (event: KeyboardEvent, index: number) => void;
}

function RowView<T>({ row, index, columns, template, isTabStop, isCurrent, onOpen, onFocus, onKeyDown }: RowProps<T>) {
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      data-index={index}
      tabIndex={isTabStop ? 0 : -1}
      className={isCurrent ? "vrow current" : "vrow"}
      style={{ gridTemplateColumns: template, height: ROW_HEIGHT, transform: `translateY(${index * ROW_HEIGHT}px)` }}
      onClick={() => onOpen(index)}
      onFocus={() => onFocus(index)}
      onKeyDown={(event) => onKeyDown(event, index)}
    >
      {columns.map((each) => (
        <div key={each.name} role="gridcell">
          {each.cell(row)}
        </div>
      ))}
    </div>
  );
}

/** A row that is drawn again only when something of its own changes. */
const Row = memo(RowView) as typeof RowView;

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
  isOld = false,
  isCut = false,
  onTop,
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
  /** Whether the rows are those of the last filter, until those of the new one are there. */
  isOld?: boolean;
  /** Whether the list ends here although there are more rows. */
  isCut?: boolean;
  /** Says whether the top of the list is near. */
  onTop?: (isNear: boolean) => void;
  height?: string;
  footer?: ReactNode;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [focused, setFocused] = useState(0);
  /** The row that gets the focus as soon as it is in the page. */
  const goal = useRef<number | null>(null);
  const isPhone = useIsPhone();
  const shown = useMemo(() => (isPhone ? columns.filter((each) => each.onPhone) : columns), [columns, isPhone]);
  const template = shown.map((each) => each.width).join(" ");
  const isIn = Math.max(0, Math.min(focused, rows.length - 1));
  // The row with the focus stays in the page, also when it is out of view: a key needs it.
  const extract = useCallback(
    (range: Range) => {
      const found = defaultRangeExtractor(range);
      return isIn >= range.count || found.includes(isIn) ? found : [...found, isIn].sort((one, other) => one - other);
    },
    [isIn],
  );
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 8,
    rangeExtractor: extract,
  });
  const items = virtual.getVirtualItems();
  const first = virtual.range?.startIndex ?? 0;
  const last = virtual.range?.endIndex ?? -1;
  useEffect(() => {
    if (isMore && last >= rows.length - ROWS_LEFT_FOR_MORE) onMore?.();
  }, [isMore, last, rows.length, onMore]);
  const isTopNear = first < ROWS_AT_TOP;
  useEffect(() => onTop?.(isTopNear), [isTopNear, onTop]);
  // The row of the last key gets the focus in the same frame, before the page is painted.
  useLayoutEffect(() => {
    if (goal.current === null) return;
    const row = box.current?.querySelector<HTMLElement>(`[data-index="${goal.current}"]`);
    if (!row) return;
    goal.current = null;
    row.focus({ preventScroll: true });
  });

  const latest = useRef({ rows, onOpen, isIn, virtual });
  latest.current = { rows, onOpen, isIn, virtual };
  const open = useCallback((index: number) => {
    const row = latest.current.rows[index];
    if (row !== undefined) latest.current.onOpen?.(row);
  }, []);
  const takeFocus = useCallback((index: number) => {
    if (index !== latest.current.isIn) setFocused(index);
  }, []);
  const onKeyDown = useCallback(
    (event: KeyboardEvent, index: number) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const end = latest.current.rows.length - 1;
      const page = Math.max(1, Math.floor((box.current?.clientHeight ?? ROW_HEIGHT) / ROW_HEIGHT) - 1);
      const steps: Record<string, number> = {
        ArrowDown: index + 1,
        j: index + 1,
        ArrowUp: index - 1,
        k: index - 1,
        PageDown: index + page,
        PageUp: index - page,
        Home: 0,
        End: end,
      };
      const to = steps[event.key];
      if (to !== undefined) {
        const next = Math.max(0, Math.min(end, to));
        if (next !== index) {
          goal.current = next;
          setFocused(next);
        }
        latest.current.virtual.scrollToIndex(next);
      } else if (event.key === "Enter" || event.key === " ") open(index);
      else return;
      event.preventDefault();
    },
    [open],
  );
  const bounded = Math.min(rows.length * ROW_HEIGHT, 1e7);
  return (
    <div className="card flush">
      <div role="grid" aria-label={label} aria-rowcount={(total ?? rows.length) + 1} aria-busy={isOld}>
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
              <Row
                // A row is its place. Rows that are added above it do not take the focus from it.
                key={item.index}
                row={row}
                index={item.index}
                columns={shown}
                template={template}
                isTabStop={item.index === isIn}
                isCurrent={current !== undefined && current === keyOf(row)}
                onOpen={open}
                onFocus={takeFocus}
                onKeyDown={onKeyDown}
              />
            );
          })}
        </div>
      </div>
      </div>
      {(footer ?? (total !== undefined || isMore || isCut)) && (
        <div className="vfoot">
          <span>
            {rows.length.toLocaleString("en")} shown{total !== undefined && ` of ${total.toLocaleString("en")}`}
            {isMore && ", more follow"}
            {isCut && ". Narrow the filter to see the other ones."}
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
