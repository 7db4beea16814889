import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic with Confluent's Parallel Consumer, in the order of keys, and prints the
 * nanoseconds from the first record until the last one is done and committed.
 *
 * Arguments: address, topic, group, records in flight, records.
 */
public class Loop {
  public static void main(String[] args) throws Exception {
    int inFlight = Integer.parseInt(args[3]);
    CountDownLatch open = new CountDownLatch(Integer.parseInt(args[4]));
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", args[0],
        "group.id", args[2],
        "auto.offset.reset", "earliest",
        "enable.auto.commit", "false");
    var bytes = new ByteArrayDeserializer();
    var processor = ParallelStreamProcessor.createEosStreamProcessor(
        ParallelConsumerOptions.<byte[], byte[]>builder()
            .consumer(new KafkaConsumer<>(settings, bytes, bytes))
            .ordering(ProcessingOrder.KEY)
            .maxConcurrency(inFlight)
            .commitMode(CommitMode.PERIODIC_CONSUMER_SYNC)
            .build());
    processor.subscribe(List.of(args[1]));
    AtomicLong began = new AtomicLong();
    processor.poll(context -> {
      began.compareAndSet(0, System.nanoTime());
      sleep(timeOf(context.offset()));
      open.countDown();
    });
    open.await();
    processor.closeDrainFirst();
    System.out.println(System.nanoTime() - began.get());
  }

  /** 0 to 5 ms, the same for a record in every loop. */
  private static long timeOf(long offset) {
    return Long.remainderUnsigned(offset * 2_654_435_761L, 5_001);
  }

  private static void sleep(long micros) {
    try {
      TimeUnit.MICROSECONDS.sleep(micros);
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException(interrupted);
    }
  }
}
