// Lists that are read page by page. A list that grows without end has a limited number of pages,
// which keeps the memory of the browser and the time of each new reading within bounds.
import { keepPreviousData, useInfiniteQuery, useQueryClient, type QueryKey } from "@tanstack/react-query";
import { useCallback, useMemo, useRef, useState } from "react";

export const MAX_PAGES = 40;
/** A list of so few pages is read again after each hint, wherever the reader is in it. */
const FEW_PAGES = 3;

interface Options<Page, Row, Cursor> {
  queryKey: QueryKey;
  read: (cursor: Cursor) => Promise<Page>;
  first: Cursor;
  next: (page: Page) => Cursor | null | undefined;
  rowsOf: (page: Page) => Row[];
  /** The most pages. The first pages stay: they have the newest rows. */
  maxPages?: number;
  /** Show the rows of the last filter until those of a new filter are there. */
  keepsRows?: boolean;
}

/** Read a list page by page. `rowsOf` must be the same function each time, so that the rows stay the same too. */
export function usePages<Page, Row, Cursor>({ queryKey, read, first, next, rowsOf, maxPages = Infinity, keepsRows = false }: Options<Page, Row, Cursor>) {
  const [isAtTop, setAtTop] = useState(true);
  const list = useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam }) => read(pageParam as Cursor),
    initialPageParam: first,
    getNextPageParam: (page, pages) => (pages.length < maxPages ? next(page) : undefined),
    // Comparing thousands of rows takes longer than drawing those in view.
    structuralSharing: false,
    placeholderData: keepsRows ? keepPreviousData : undefined,
    // A reader far down sees nothing of the new rows at the top. The list is read again at the top.
    enabled: (query) => {
      const found = query.state.data as { pages: unknown[] } | undefined;
      return isAtTop || found === undefined || found.pages.length <= FEW_PAGES;
    },
  });
  const pages = list.data?.pages;
  const rows = useMemo(() => pages?.flatMap(rowsOf) ?? [], [pages, rowsOf]);
  const { hasNextPage, isPlaceholderData, isFetchingNextPage, fetchNextPage } = list;
  const hasMore = hasNextPage && !isPlaceholderData;
  const queries = useQueryClient();
  const key = useRef(queryKey);
  key.current = queryKey;
  const readMore = useCallback(() => {
    if (!hasMore || isFetchingNextPage) return;
    const queryKey = key.current;
    // The library takes a list for current after a further page, and forgets a hint about the others.
    const isOutdated = queries.getQueryState(queryKey)?.isInvalidated;
    void fetchNextPage().then(() => (isOutdated ? queries.invalidateQueries({ queryKey, exact: true }) : undefined));
  }, [hasMore, isFetchingNextPage, fetchNextPage, queries]);
  const last = pages?.at(-1);
  return {
    list,
    pages: pages ?? [],
    rows,
    hasMore,
    readMore,
    /** Whether there are more rows than the list shows. */
    isCut: pages !== undefined && pages.length >= maxPages && last !== undefined && (next(last) ?? null) !== null,
    /** Whether the rows are those of the last filter. */
    isOld: isPlaceholderData,
    setAtTop,
  };
}
