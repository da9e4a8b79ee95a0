import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.lucene.analysis.core.KeywordAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.DoublePoint;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.Term;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorConfiguration;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.TermFilteredPresearcher;
import org.apache.lucene.monitor.TermWeightor;
import org.apache.lucene.search.BooleanClause;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.TermQuery;

/**
 * Lucene's Monitor as a peer. Takes commands, a line each, and answers each with a line of seconds, or bytes.
 *
 * <p>bytes: the heap in use; words FILE: how often each word occurs; subscribe FILE: id, box, rarest word, words;
 * match FILE OUT: for each message (id, x, y, words) writes pairs of ids as big-endian longs. Files have a row a line,
 * fields between tabs, words between spaces.
 *
 * <p>With the argument "cells" a subscription also asks for one of the terms "rarest@cell" of the cells that its box
 * meets, and a message has all its words at its cell: the presearcher then finds subscriptions by word and place.
 */
public final class Driver {
  private static final int REGISTERED_AT_ONCE = 10_000;

  private final boolean hasCells;
  private final int nCells;
  private final Map<String, Integer> frequencies = new HashMap<>();
  private Monitor monitor;

  private Driver(boolean hasCells, int nCells) {
    this.hasCells = hasCells;
    this.nCells = nCells;
  }

  public static void main(String[] arguments) throws IOException {
    Driver driver = new Driver(arguments[0].equals("cells"), Integer.parseInt(arguments[1]));
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      System.out.println(driver.answer(line.split("\t")));
    }
  }

  private double answer(String[] command) throws IOException {
    switch (command[0]) {
      case "words":
        for (String[] row : rows(command[1])) {
          frequencies.put(row[0], Integer.valueOf(row[1]));
        }
        return 0;
      case "bytes":
        System.gc();
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
      case "subscribe":
        return subscribe(rows(command[1]));
      default:
        return match(rows(command[1]), Path.of(command[2]));
    }
  }

  private double subscribe(List<String[]> rows) throws IOException {
    long started = System.nanoTime();
    // The presearcher looks for the term of the highest weight: the rarest, and at a cell it is rarer still.
    TermWeightor weightor =
        term -> {
          boolean isAtCell = term.field().equals("cells");
          int frequency = frequencies.getOrDefault(word(term), 0);
          return isAtCell ? 2.0 / (1 + frequency / (double) (nCells * nCells)) : 1.0 / (1 + frequency);
        };
    monitor =
        new Monitor(
            new KeywordAnalyzer(),
            new TermFilteredPresearcher(weightor, List.of(), Set.of()),
            new MonitorConfiguration());
    List<MonitorQuery> queries = new ArrayList<>();
    for (String[] row : rows) {
      queries.add(query(row));
      if (queries.size() == REGISTERED_AT_ONCE) {
        monitor.register(queries);
        queries.clear();
      }
    }
    monitor.register(queries);
    return (System.nanoTime() - started) / 1e9;
  }

  private MonitorQuery query(String[] row) {
    double[] low = {Double.parseDouble(row[1]), Double.parseDouble(row[2])};
    double[] high = {Double.parseDouble(row[3]), Double.parseDouble(row[4])};
    BooleanQuery.Builder all = new BooleanQuery.Builder();
    for (String word : row[6].split(" ")) {
      all.add(new TermQuery(new Term("words", word)), BooleanClause.Occur.FILTER);
    }
    all.add(DoublePoint.newRangeQuery("place", low, high), BooleanClause.Occur.FILTER);
    if (hasCells) {
      BooleanQuery.Builder cells = new BooleanQuery.Builder();
      for (int x = cell(low[0]); x <= cell(high[0]); x++) {
        for (int y = cell(low[1]); y <= cell(high[1]); y++) {
          cells.add(
              new TermQuery(new Term("cells", row[5] + "@" + (x * nCells + y))), BooleanClause.Occur.SHOULD);
        }
      }
      all.add(cells.build(), BooleanClause.Occur.FILTER);
    }
    return new MonitorQuery(row[0], all.build());
  }

  private double match(List<String[]> rows, Path out) throws IOException {
    List<long[]> pairs = new ArrayList<>();
    long started = System.nanoTime();
    for (String[] row : rows) {
      long id = Long.parseLong(row[0]);
      for (QueryMatch found : monitor.match(document(row), QueryMatch.SIMPLE_MATCHER).getMatches()) {
        pairs.add(new long[] {id, Long.parseLong(found.getQueryId())});
      }
    }
    double seconds = (System.nanoTime() - started) / 1e9;
    try (DataOutputStream file = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(out)))) {
      for (long[] pair : pairs) {
        file.writeLong(pair[0]);
        file.writeLong(pair[1]);
      }
    }
    return seconds;
  }

  private Document document(String[] row) {
    double x = Double.parseDouble(row[1]);
    double y = Double.parseDouble(row[2]);
    Document document = new Document();
    document.add(new DoublePoint("place", x, y));
    for (String word : row[3].split(" ")) {
      document.add(new StringField("words", word, Field.Store.NO));
      if (hasCells) {
        document.add(new StringField("cells", word + "@" + (cell(x) * nCells + cell(y)), Field.Store.NO));
      }
    }
    return document;
  }

  private int cell(double place) {
    return (int) Math.min(Math.max(Math.floor(place * nCells), 0), nCells - 1);
  }

  private static String word(Term term) {
    String text = term.text();
    return term.field().equals("cells") ? text.substring(0, text.lastIndexOf('@')) : text;
  }

  private static List<String[]> rows(String file) throws IOException {
    List<String[]> rows = new ArrayList<>();
    try (BufferedReader lines = Files.newBufferedReader(Path.of(file))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        rows.add(line.split("\t"));
      }
    }
    return rows;
  }
}
