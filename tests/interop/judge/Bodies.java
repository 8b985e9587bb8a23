import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.HexFormat;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.Compressor;
import org.apache.rocketmq.common.compression.CompressorFactory;

/** Bodies as RocketMQ's clients pack and unpack them: rows of [system flag, level, body in hex]. */
final class Bodies {
    private static final int TYPE_SHIFT = 8;
    private static final int TYPE_MASK = 7;

    private Bodies() { }

    static JSONObject judge(JSONObject request, boolean pack) throws Exception {
        JSONArray answers = new JSONArray();
        JSONArray rows = request.getJSONArray("rows");
        for (int i = 0; i < rows.size(); i++) {
            JSONArray row = rows.getJSONArray(i);
            int type = row.getIntValue(0) >> TYPE_SHIFT & TYPE_MASK;
            byte[] body = HexFormat.of().parseHex(row.getString(2));
            Compressor compressor =
                CompressorFactory.getCompressor(CompressionType.findByValue(type));
            byte[] found = pack
                ? compressor.compress(body, row.getIntValue(1)) : compressor.decompress(body);
            answers.add(HexFormat.of().formatHex(found));
        }
        JSONObject answer = new JSONObject();
        answer.put("bodies", answers);
        return answer;
    }
}
