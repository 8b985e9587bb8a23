import java.io.File;
import java.io.IOException;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerMetrics;

/** RocketMQ's timer beside a store, put together as BrokerController does. */
final class Timers {
    private Timers() {
    }

    static TimerMessageStore beside(
            DefaultMessageStore store, MessageStoreConfig config, BrokerStatsManager statistics)
            throws IOException {
        String folder = config.getStorePathRootDir() + File.separator + "config" + File.separator;
        TimerMessageStore timers = new TimerMessageStore(
            store, config, new TimerCheckpoint(folder + "timercheck"),
            new TimerMetrics(folder + "timermetrics"), statistics);
        timers.registerEscapeBridgeHook(store::putMessage);
        store.setTimerMessageStore(timers);
        return timers;
    }
}
